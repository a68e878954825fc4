// How the next token is chosen, and what a chosen token reports. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace moesaic {

struct SamplingParams {
  double temperature = 1.0;         // 0: greedy
  int32_t top_k = 0;                // 0 or negative: off
  double top_p = 1.0;               // 1: off
  double min_p = 0.0;               // 0: off
  double repetition_penalty = 1.0;  // over prompt and output (CTRL, as in transformers)
  double presence_penalty = 0.0;    // over output, OpenAI's formula
  double frequency_penalty = 0.0;
  std::optional<uint64_t> seed;  // absent: a random one
  std::vector<std::pair<int32_t, float>> logit_bias;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct GeneratedToken {
  int32_t token = 0;
  float logprob = 0;              // only when asked for
  std::vector<TokenLogprob> top;  // best first
};

}  // namespace moesaic
