// Request bodies: whatever comes in is either refused with a 400 that can be written as JSON, or
// gives a request whose fields are within their ranges. The first byte chooses the route; every
// body also goes through the HTTP reader as a stream of small pieces.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "serving/api/api_error.h"
#include "serving/api/api_request.h"
#include "serving/api/tokenize.h"
#include "serving/http/request_reader.h"

namespace {

using moesaic::ApiError;

void CheckFields(const moesaic::ApiRequest& fields) {
  CHECK(fields.n >= 1 && fields.n <= 128);
  CHECK(fields.logprobs >= -1 && fields.logprobs <= 20);
  CHECK(fields.prompt_logprobs >= -1 && fields.prompt_logprobs <= 20);
  CHECK_GE(fields.min_tokens, 0);
  CHECK(!fields.max_tokens.has_value() || *fields.max_tokens >= fields.min_tokens);
  CHECK_LE(fields.unknown_fields.size(), 64u);
  const moesaic::SamplingFields& sampling = fields.sampling;
  CHECK(!sampling.temperature.has_value() || *sampling.temperature >= 0);
  CHECK(!sampling.top_p.has_value() || (*sampling.top_p > 0 && *sampling.top_p <= 1));
  for (const std::string& stop : fields.stop) CHECK(!stop.empty());
  for (const auto& [token, bias] : sampling.logit_bias) {
    CHECK(token >= 0 && bias >= -100 && bias <= 100);
  }
}

void ParseBody(uint8_t route, std::string_view body) {
  switch (route % 4) {
    case 0: {
      const auto request = moesaic::ParseCompletionRequest(body);
      CheckFields(request);
      CHECK(!request.prompts.empty());
      break;
    }
    case 1: {
      const auto request = moesaic::ParseChatRequest(body);
      CheckFields(request);
      CHECK(request.chat.messages.is_array() && !request.chat.messages.empty());
      for (const moesaic::Json& message : request.chat.messages) {
        CHECK(message.at("role").is_string());
        // With calls the text may be null, or left out, as the client wrote it.
        const auto content = message.find("content");
        if (content == message.end() || content->is_null()) {
          CHECK(message.contains("tool_calls"));
        } else {
          CHECK(content->is_string());
        }
      }
      break;
    }
    case 2:
      moesaic::ParseTokenizeRequest(body);
      break;
    default:
      moesaic::ParseDetokenizeRequest(body);
  }
}

// The bytes as an HTTP stream in pieces of `step` bytes.
void ReadStream(std::string_view bytes, size_t step) {
  moesaic::ServerOptions options;
  options.max_header_bytes = 1024;
  options.max_target_bytes = 128;
  options.max_body_bytes = 4096;
  moesaic::RequestReader reader(options);
  using Progress = moesaic::RequestReader::Progress;
  std::string input;
  while (!bytes.empty()) {
    const size_t count = step < bytes.size() ? step : bytes.size();
    input.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    for (Progress progress = reader.Consume(input); progress != Progress::kNeedMore;
         progress = reader.Consume(input)) {
      if (progress == Progress::kFailed) {
        CHECK(reader.error().status() >= 400 && reader.error().status() < 600);
        return;
      }
      if (progress != Progress::kComplete) continue;
      const moesaic::HttpRequest request = reader.TakeRequest();
      CHECK_LE(request.body.size(), options.max_body_bytes);
      CHECK(!request.path.empty() && !request.id.empty());
    }
    // What is not taken is bounded, or a slow client could fill memory.
    CHECK_LE(input.size(), (size_t{64} << 10) + step);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    ParseBody(data[0], text);
  } catch (const ApiError& error) {
    CHECK_EQ(error.status(), 400);
    CHECK(!moesaic::ErrorBody(error).empty());
  }
  ReadStream(text, 1 + data[0] / 4);
  return 0;
}
