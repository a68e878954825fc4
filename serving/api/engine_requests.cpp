#include "serving/api/engine_requests.h"

#include <algorithm>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

SamplingParams MergeSampling(const SamplingFields& fields, const GenerationDefaults& defaults) {
  // A negative default means that the model's files have none.
  const auto pick = [](std::optional<double> field, double model, double otherwise) {
    return field.value_or(model >= 0 ? model : otherwise);
  };
  SamplingParams params;
  params.temperature = pick(fields.temperature, defaults.temperature, 1.0);
  params.top_p = pick(fields.top_p, defaults.top_p, 1.0);
  params.min_p = pick(fields.min_p, defaults.min_p, 0.0);
  params.repetition_penalty = fields.repetition_penalty.value_or(
      defaults.repetition_penalty > 0 ? defaults.repetition_penalty : 1.0);
  params.presence_penalty = fields.presence_penalty.value_or(0.0);
  params.frequency_penalty = fields.frequency_penalty.value_or(0.0);
  params.top_k = fields.top_k.value_or(static_cast<int32_t>(std::max<int64_t>(defaults.top_k, 0)));
  params.top_k = std::max(params.top_k, 0);
  params.seed = fields.seed;
  params.logit_bias = fields.logit_bias;
  return params;
}

ApiError TooLong(int64_t context, int64_t prompt, std::optional<int32_t> asked,
                 const std::string& param) {
  std::string message =
      asked.has_value()
          ? fmt::format(
                "This model's maximum context length is {} tokens. However, you requested "
                "{} tokens ({} in the prompt, {} in the completion). Please reduce the "
                "length of the prompt or of the completion.",
                context, prompt + *asked, prompt, *asked)
          : fmt::format(
                "This model's maximum context length is {} tokens. However, the prompt has "
                "{} tokens and leaves no room for a completion. Please reduce its length.",
                context, prompt);
  return ApiError(400, "invalid_request_error", message, param, "context_length_exceeded");
}

int32_t ResolveMaxTokens(const ApiRequest& fields, const RequestLimits& limits,
                         int64_t prompt_tokens, const char* prompt_param) {
  const int64_t room = limits.max_context_tokens - prompt_tokens;
  if (fields.max_tokens.has_value()) {
    if (fields.cut_to_context && room > 0) {
      return static_cast<int32_t>(std::min<int64_t>(*fields.max_tokens, room));
    }
    if (*fields.max_tokens > room) {
      throw TooLong(limits.max_context_tokens, prompt_tokens, fields.max_tokens,
                    room <= 0 ? prompt_param : fields.max_tokens_name);
    }
    return *fields.max_tokens;
  }
  if (room < 1) throw TooLong(limits.max_context_tokens, prompt_tokens, std::nullopt, prompt_param);
  return static_cast<int32_t>(
      std::min<int64_t>(room, limits.default_max_tokens.value_or(INT32_MAX)));
}

// The answer is one JSON document (or one event of a stream): a request must not make it so large
// that memory or the connections' threads feel it.
void CheckPromptLogprobs(const std::vector<EngineRequest>& requests, size_t max_entries) {
  size_t entries = 0;
  for (const EngineRequest& request : requests) {
    if (request.prompt_logprobs < 0) continue;
    entries += request.prompt.size() * (static_cast<size_t>(request.prompt_logprobs) + 1);
  }
  if (entries <= max_entries) return;
  throw BadParam("logprobs",
                 "The log-probabilities of these prompts are {} entries, more than the {} that one "
                 "request may have; send fewer prompts at a time.",
                 entries, max_entries);
}

void CheckRouted(const ApiRequest& fields, const std::vector<EngineRequest>& requests,
                 const RequestLimits& limits) {
  using Form = RoutedOutput::Form;
  if (fields.routed_experts == Form::kNone) return;
  const size_t most =
      fields.routed_experts == Form::kLists ? limits.max_routed_lists : limits.max_routed_base64;
  const auto start = static_cast<size_t>(fields.routed_experts_start);
  size_t entries = 0;
  for (const EngineRequest& request : requests) {
    if (start > request.prompt.size()) {
      throw BadParam("routed_experts_start_len",
                     "routed_experts_start_len is {}, but the prompt has {} tokens.", start,
                     request.prompt.size());
    }
    const size_t tokens = request.prompt.size() - start + static_cast<size_t>(request.max_tokens);
    entries += tokens * limits.routed_per_token;
  }
  if (entries <= most) return;
  throw BadParam("return_routed_experts",
                 "The answer could have {} experts, more than the {} that one request may ask for; "
                 "give routed_experts_start_len{}, or a smaller max_tokens.",
                 entries, most,
                 fields.routed_experts == Form::kLists ? ", or true in place of \"lists\"" : "");
}

}  // namespace

RequestLimits LimitsOf(const Engine& engine) {
  RequestLimits limits{engine.generation_defaults()};
  limits.max_context_tokens = engine.max_context_tokens();
  const ModelConfig& config = engine.config();
  limits.vocab_size = config.vocab_size;
  if (config.num_experts() > 0) {
    limits.routed_per_token = static_cast<size_t>(config.num_layers() * config.top_k());
  }
  return limits;
}

void CheckTokens(const std::vector<int32_t>& tokens, int64_t vocab_size, const char* param) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      throw BadParam(param, "{} holds token id {}; this model has ids 0 to {}.", param, token,
                     vocab_size - 1);
    }
  }
}

void CheckSequences(size_t prompts, int32_t n, size_t max_sequences) {
  if (prompts <= max_sequences / static_cast<size_t>(n)) return;
  throw BadParam("prompt",
                 "{} prompts with n = {} are more than the {} sequences that one request may have.",
                 prompts, n, max_sequences);
}

std::vector<EngineRequest> BuildEngineRequests(const ApiRequest& fields,
                                               const std::vector<std::vector<int32_t>>& prompts,
                                               const RequestLimits& limits) {
  const size_t n = static_cast<size_t>(fields.n);
  CheckSequences(prompts.size(), fields.n, limits.max_sequences);
  CheckTokens(fields.stop_token_ids, limits.vocab_size, "stop_token_ids");
  for (const auto& [token, bias] : fields.sampling.logit_bias) {
    CheckTokens({token}, limits.vocab_size, "logit_bias");
  }
  const char* prompt_param = limits.default_max_tokens.has_value() ? "prompt" : "messages";

  EngineRequest common;
  common.sampling = MergeSampling(fields.sampling, limits.defaults);
  common.ignore_eos = fields.ignore_eos;
  common.stop = fields.stop;
  common.stop_token_ids = fields.stop_token_ids;
  common.skip_special_tokens = fields.skip_special_tokens;
  common.include_stop_in_output = fields.include_stop_in_output;
  common.logprobs = fields.logprobs;
  common.prompt_logprobs = fields.prompt_logprobs;
  if (fields.routed_experts != RoutedOutput::Form::kNone) {
    common.return_routed_experts = true;
    common.routed_from = fields.routed_experts_start;
  }
  common.deadline = limits.deadline;

  std::vector<EngineRequest> requests;
  requests.reserve(prompts.size() * n);
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) throw BadParam(prompt_param, "{} has no tokens.", prompt_param);
    CheckTokens(prompt, limits.vocab_size, prompt_param);
    common.max_tokens =
        ResolveMaxTokens(fields, limits, static_cast<int64_t>(prompt.size()), prompt_param);
    common.min_tokens = std::min(fields.min_tokens, common.max_tokens);
    for (size_t i = 0; i < n; ++i) {
      EngineRequest request = common;
      request.prompt = prompt;
      request.id = prompts.size() * n == 1
                       ? limits.request_id
                       : fmt::format("{}-{}", limits.request_id, requests.size());
      // The choices of a prompt must differ although they share a seed.
      if (request.sampling.seed.has_value()) *request.sampling.seed += i;
      requests.push_back(std::move(request));
    }
  }
  CheckPromptLogprobs(requests, limits.max_prompt_logprobs);
  CheckRouted(fields, requests, limits);
  return requests;
}

}  // namespace moesaic
