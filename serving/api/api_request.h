// ApiRequest: a request for generated text as plain data, whatever dialect it came in, and the
// functions that read the OpenAI API's (with vLLM's extensions) from JSON. Pure: no tokenizer, no
// engine, no I/O. They throw ApiError (400) for everything that is wrong.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "serving/api/chat_input.h"
#include "serving/api/expert_json.h"
#include "serving/api/keep_alive.h"
#include "serving/api/output_format.h"

namespace moesaic {

// What an absent sampling field means depends on the model, so absence is kept.
struct SamplingFields {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// What completions and chat completions have in common.
struct ApiRequest {
  std::string model;                    // empty: not named
  std::optional<KeepAlive> keep_alive;  // how long the model stays loaded behind it
  std::optional<int32_t> priority;      // lower ones go first
  SamplingFields sampling;
  std::optional<int32_t> max_tokens;
  std::string max_tokens_name = "max_tokens";  // as the client spelt it
  // More max_tokens than the context has room for are no error: the answer ends where it is full.
  bool cut_to_context = false;
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  std::optional<bool> add_special_tokens;
  int32_t n = 1;
  int32_t logprobs = -1;  // as in EngineRequest
  int32_t prompt_logprobs = -1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool return_progress = false;
  RoutedOutput::Form routed_experts = RoutedOutput::Form::kNone;
  int32_t routed_experts_start = 0;
  bool return_moesaic = false;
  std::optional<OutputFormat> format;
  Json response_fields;  // what the answer repeats of the request; null: nothing
  std::vector<std::string> unknown_fields;
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : ApiRequest {
  std::vector<PromptInput> prompts;  // at least one
  bool echo = false;
};

struct ChatRequest : ApiRequest {
  ChatInput chat;
};

// `gone`: nobody wants the answer any more once it is set, and the work ends soon with ClientLeft.
CompletionRequest ParseCompletionRequest(std::string_view body,
                                         const std::atomic<bool>* gone = nullptr);
ChatRequest ParseChatRequest(std::string_view body, const std::atomic<bool>* gone = nullptr);
}  // namespace moesaic
