#include "serving/cli/workload_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"

namespace moesaic {
namespace {

constexpr int64_t kMostRequestTokens = int64_t{1} << 24;

[[noreturn]] void FailAt(const std::string& where, std::string_view problem) {
  Fail(ErrorKind::kCorrupt, "{}: {}", where, problem);
}

int64_t TokensField(const Json& body, const char* key, const std::string& where) {
  const auto it = body.find(key);
  if (it == body.end() || it->is_null()) return 0;
  if (!it->is_number_integer() || *it < 1 || *it > kMostRequestTokens) {
    FailAt(where, fmt::format("{} must be an integer from 1 to {}", key, kMostRequestTokens));
  }
  return it->get<int64_t>();
}

// The texts of a prompt or of messages, joined: what a template adds is not counted.
std::string PromptText(const Json& body, const std::string& where) {
  const auto prompt = body.find("prompt");
  if (prompt != body.end()) {
    if (!prompt->is_string()) FailAt(where, "prompt must be a text");
    return prompt->get<std::string>();
  }
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array()) {
    FailAt(where, "has neither prompt, messages nor prompt_tokens");
  }
  std::string text;
  for (const Json& message : *messages) {
    if (!message.is_object()) FailAt(where, "messages must be objects");
    const auto content = message.find("content");
    if (content == message.end() || !content->is_string()) continue;
    text += content->get_ref<const std::string&>();
    text += '\n';
  }
  return text;
}

}  // namespace

Workload ParseWorkloadLines(std::string_view text, const std::string& name,
                            int64_t default_generated, const TokenCounter& count_tokens) {
  Workload workload;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) FailAt(where, "is not a JSON object");
    const auto inner = object.find("body");
    if (inner != object.end() && !inner->is_object()) FailAt(where, "body must be an object");
    const Json& body = inner != object.end() ? *inner : object;

    RequestLengths request;
    request.prompt_tokens = TokensField(body, "prompt_tokens", where);
    if (request.prompt_tokens == 0) {
      request.prompt_tokens = std::max<int64_t>(1, count_tokens(PromptText(body, where)));
    }
    request.generated_tokens = TokensField(body, "max_completion_tokens", where);
    if (request.generated_tokens == 0) {
      request.generated_tokens = TokensField(body, "max_tokens", where);
    }
    if (request.generated_tokens == 0) request.generated_tokens = default_generated;
    workload.requests.push_back(request);
  }
  if (workload.requests.empty()) Fail(ErrorKind::kInvalidArgument, "{}: has no requests", name);
  workload.source =
      fmt::format("{}: {} requests, {:.1f} prompt and {:.1f} generated tokens on average", name,
                  workload.requests.size(), workload.mean_prompt(), workload.mean_generated());
  return workload;
}

}  // namespace moesaic
