// Request bodies of the dialects beside OpenAI's completions and chats: whatever comes in is either
// refused with a 400 that can be written in the dialect, or gives a conversation that a template
// can take. The first byte chooses the dialect.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/check.h"
#include "serving/api/api_error.h"
#include "serving/api/messages_output.h"
#include "serving/api/messages_request.h"
#include "serving/api/ollama_output.h"
#include "serving/api/ollama_request.h"
#include "serving/api/responses_request.h"
#include "serving/text/chat_messages.h"

namespace {

using moesaic::Json;

void CheckLimits(const moesaic::ApiRequest& request) {
  CHECK(!request.max_tokens.has_value() || *request.max_tokens >= 1);
  CHECK_EQ(request.n, 1);
  CHECK(!request.sampling.top_p.has_value() || *request.sampling.top_p > 0);
  for (const std::string& stop : request.stop) CHECK(!stop.empty());
}

void CheckConversation(const moesaic::ChatRequest& request) {
  CheckLimits(request);
  const moesaic::ChatInput& chat = request.chat;
  CHECK(chat.messages.is_array() && !chat.messages.empty());
  for (const Json& message : chat.messages) {
    CHECK(message.at("role").is_string() && message.at("content").is_string());
  }
  CHECK(chat.tools.is_null() || (chat.tools.is_array() && !chat.tools.empty()));
  CHECK(!chat.force_call || chat.tools.is_array());
  CHECK(!(chat.add_generation_prompt && chat.continue_final_message));
  // Only the arguments of calls are left to the template, as they are the model's.
  try {
    moesaic::NormalizeMessages(chat.messages, {});
  } catch (const moesaic::MessageError& error) {
    CHECK(error.where().find(".arguments") != std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 5) {
      case 0:
        CheckConversation(moesaic::ParseMessagesRequest(body));
        break;
      case 1:
        CheckConversation(moesaic::ParseCountTokensRequest(body));
        break;
      case 2:
        CheckConversation(moesaic::ParseResponsesRequest(body));
        break;
      case 3:
        CheckConversation(moesaic::ParseOllamaChatRequest(body));
        break;
      default: {
        const auto request = moesaic::ParseOllamaGenerateRequest(body);
        if (const auto* chat = std::get_if<moesaic::ChatRequest>(&request)) {
          CheckConversation(*chat);
        } else {
          CheckLimits(std::get<moesaic::CompletionRequest>(request));
        }
      }
    }
  } catch (const moesaic::ApiError& error) {
    CHECK_EQ(error.status(), 400);
    CHECK(!moesaic::MessagesErrorBody(error).empty() && !moesaic::OllamaErrorBody(error).empty());
  }
  return 0;
}
