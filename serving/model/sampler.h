// Sampling: from logits to the next token. Pure functions over caller-owned memory plus a small
// state per sequence.
//
// Order of operations, as vLLM and transformers have it: logit bias, repetition, frequency and
// presence penalties; temperature 0 takes the best token (the lower id on a tie); otherwise
// temperature, softmax, min-p, top-k, top-p, one draw. The draw is a function of (seed, number of
// the output token), so a sequence that is preempted or batched differently samples the same
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace moesaic {

struct SamplingParams;
struct GeneratedToken;

// What penalties need to know of a sequence. Empty unless a penalty is on.
struct PenaltyState {
  std::unordered_map<int32_t, int32_t> output_counts;
  std::unordered_set<int32_t> seen;  // prompt and output
};

class Sampler {
 public:
  Sampler(const CpuKernels& kernels, int64_t vocab_size);

  // logits [vocab] are changed in place. `token_number`: how many tokens the sequence has sampled
  // before.
  int32_t Sample(const SamplingParams& params, uint64_t seed, int64_t token_number,
                 const PenaltyState& penalties, std::span<float> logits);

  // Log-probability of `token` and of the `top` best tokens under softmax of the raw logits (before
  // penalties and temperature, as OpenAI and vLLM report them).
  GeneratedToken Logprobs(std::span<const float> logits, int32_t token, int32_t top);

 private:
  int32_t Draw(const SamplingParams& params, uint64_t seed, int64_t token_number,
               std::span<float> logits);

  const CpuKernels& kernels_;
  std::vector<float> probabilities_;  // [vocab]
  std::vector<int32_t> candidates_;   // [vocab]
};

// Whether Sample takes the largest of the logits as they are.
bool TakesLargestLogit(const SamplingParams& params);

// The token with the largest logit; the lower id on a tie. NaN never wins.
int32_t ArgMax(std::span<const float> logits);

}  // namespace moesaic
