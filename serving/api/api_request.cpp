#include "serving/api/api_request.h"

#include <algorithm>
#include <limits>

#include "serving/api/request_fields.h"
#include "serving/api/request_parts.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxChoices = 128;     // as OpenAI
constexpr int64_t kMaxTopLogprobs = 20;  // as OpenAI and vLLM

void ParseStreaming(RequestFields& fields, ApiRequest& request) {
  request.stream = fields.Bool("stream").value_or(false);
  const Json* value = fields.Find("stream_options");
  if (value == nullptr) return;
  if (!request.stream) {
    throw BadParam("stream_options", "stream_options is allowed only when stream is true.");
  }
  RequestFields options(*value, "stream_options.");
  request.include_usage = options.Bool("include_usage").value_or(false);
  request.continuous_usage = options.Bool("continuous_usage_stats").value_or(false);
  for (std::string& name : options.UnknownNames()) {
    request.unknown_fields.push_back(std::move(name));
  }
}

void ParseExpertFields(RequestFields& fields, ApiRequest& request) {
  using Form = RoutedOutput::Form;
  const Json* const form = fields.Find("return_routed_experts");
  if (form != nullptr && form->is_boolean()) {
    request.routed_experts = form->get<bool>() ? Form::kBase64 : Form::kNone;
  } else if (form != nullptr && *form == "lists") {
    request.routed_experts = Form::kLists;
  } else if (form != nullptr) {
    throw BadParam("return_routed_experts",
                   "return_routed_experts must be true (sglext, base64), \"lists\" or false.");
  }
  request.routed_experts_start =
      static_cast<int32_t>(fields.Int("routed_experts_start_len", 0, kMaxInt32).value_or(0));
  request.return_moesaic = fields.Bool("return_moesaic").value_or(false);
}

void ParseCommon(RequestFields& fields, ApiRequest& request) {
  request.model = fields.String("model").value_or("");
  ParseTreatment(fields, request);
  request.sampling = ParseSampling(fields);
  ParseStreaming(fields, request);
  request.min_tokens = static_cast<int32_t>(fields.Int("min_tokens", 0, kMaxInt32).value_or(0));
  request.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  request.stop = ParseStop(fields, "stop");
  request.stop_token_ids = fields.TokenIds("stop_token_ids").value_or(std::vector<int32_t>());
  request.include_stop_in_output = fields.Bool("include_stop_str_in_output").value_or(false);
  request.skip_special_tokens = fields.Bool("skip_special_tokens").value_or(true);
  request.add_special_tokens = fields.Bool("add_special_tokens");
  request.return_token_ids = fields.Bool("return_token_ids").value_or(false);
  request.return_progress = fields.Bool("return_progress").value_or(false);
  ParseExpertFields(fields, request);
  request.n = static_cast<int32_t>(fields.Int("n", 1, kMaxChoices).value_or(1));
  if (const auto best_of = fields.Int("best_of", 1, kMaxInt32);
      best_of.value_or(request.n) != request.n) {
    throw BadParam("best_of", "best_of is supported only when it equals n ({}), it is {}.",
                   request.n, *best_of);
  }
  if (const auto count = fields.Int("prompt_logprobs", 0, kMaxTopLogprobs)) {
    if (request.stream) {
      throw BadParam("prompt_logprobs", "prompt_logprobs is not available when stream is true.");
    }
    request.prompt_logprobs = static_cast<int32_t>(*count);
  }
  if (fields.Bool("use_beam_search").value_or(false)) {
    throw BadParam("use_beam_search", "Beam search is not supported.");
  }
  fields.String("user");  // accepted; there is nothing to do with it
  ParseOutputFormat(fields, request);
}

void CheckMinTokens(const ApiRequest& request) {
  if (request.max_tokens.has_value() && request.min_tokens > *request.max_tokens) {
    throw BadParam("min_tokens", "min_tokens ({}) must not be greater than {} ({}).",
                   request.min_tokens, request.max_tokens_name, *request.max_tokens);
  }
}

std::vector<PromptInput> ParsePrompts(RequestFields& fields) {
  const Json* value = fields.Find("prompt");
  if (value == nullptr) throw BadParam("prompt", "prompt is missing.");
  std::vector<PromptInput> prompts;
  if (value->is_string()) {
    prompts.emplace_back(value->get<std::string>());
    return prompts;
  }
  if (!value->is_array()) {
    throw BadParam("prompt",
                   "prompt must be a string, an array of strings, an array of token ids or an "
                   "array of such arrays, it is {}.",
                   JsonTypeName(*value));
  }
  if (value->empty()) throw BadParam("prompt", "prompt must not be empty.");
  if (value->front().is_number()) {
    prompts.emplace_back(ReadTokenIds(*value, "prompt"));
    return prompts;
  }
  for (const Json& item : *value) {
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      prompts.emplace_back(ReadTokenIds(item, fmt::format("prompt[{}]", prompts.size())));
    } else {
      throw BadParam("prompt", "prompt[{}] must be a string or an array of token ids, it is {}.",
                     prompts.size(), JsonTypeName(item));
    }
  }
  return prompts;
}

}  // namespace

CompletionRequest ParseCompletionRequest(std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  CompletionRequest request;
  ParseCommon(fields, request);
  request.prompts = ParsePrompts(fields);
  request.echo = fields.Bool("echo").value_or(false);
  if (!fields.String("suffix").value_or("").empty()) {
    throw BadParam("suffix", "suffix is not supported.");
  }
  if (const auto count = fields.Int("logprobs", 0, kMaxTopLogprobs)) {
    request.logprobs = static_cast<int32_t>(*count);
    if (request.echo) request.prompt_logprobs = std::max(request.prompt_logprobs, request.logprobs);
  }
  request.max_tokens = ParseTokenCount(fields, "max_tokens", 0);
  CheckMinTokens(request);
  KeepUnknown(fields, request);
  return request;
}

ChatRequest ParseChatRequest(std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  ChatRequest request;
  ParseCommon(fields, request);
  request.chat = ParseChatInput(fields);
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Int("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !logprobs) {
    throw BadParam("top_logprobs", "top_logprobs needs logprobs to be true.");
  }
  if (logprobs) request.logprobs = static_cast<int32_t>(top.value_or(0));
  // The newer name wins, as at OpenAI.
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto count = ParseTokenCount(fields, name, 1)) {
      request.max_tokens = count;
      request.max_tokens_name = name;
    }
  }
  CheckMinTokens(request);
  KeepUnknown(fields, request);
  return request;
}

}  // namespace moesaic
