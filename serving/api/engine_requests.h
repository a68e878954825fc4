// From a parsed API request and its tokenised prompts to what the engine takes: defaults, limits,
// one EngineRequest per choice. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serving/api/api_request.h"
#include "serving/engine/engine.h"

namespace moesaic {

struct RequestLimits {
  const GenerationDefaults& defaults;  // the model's own; a field of the request wins over them
  int64_t max_context_tokens = 0;
  int64_t vocab_size = 0;
  size_t max_sequences = 1024;
  size_t max_prompt_logprobs = 1'000'000;          // of one request; about 60 MB of JSON
  size_t routed_per_token = 0;                     // experts: layers x top_k
  size_t max_routed_lists = 1'000'000;             // experts of one answer
  size_t max_routed_base64 = 16'000'000;           // likewise; 85 MB
  std::optional<int32_t> default_max_tokens = {};  // nullopt: what the context has room for
  std::string request_id = {};
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

// The engine's own; it outlives the result.
RequestLimits LimitsOf(const Engine& engine);

// Throws ApiError (400) for ids that the model does not have.
void CheckTokens(const std::vector<int32_t>& tokens, int64_t vocab_size, const char* param);

// Throws ApiError (400) when prompts x n are more than `max_sequences`.
void CheckSequences(size_t prompts, int32_t n, size_t max_sequences);

// Choice i of prompt p is element p * n + i. Throws ApiError (400): too many choices or
// log-probabilities, an empty or too long prompt, token ids that the model does not have.
std::vector<EngineRequest> BuildEngineRequests(const ApiRequest& fields,
                                               const std::vector<std::vector<int32_t>>& prompts,
                                               const RequestLimits& limits);

}  // namespace moesaic
