#include "serving/model/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "serving/model/sampling_params.h"

namespace moesaic {
namespace {

// Uniform in [0, 1) from a counter (splitmix64, Steele, Lea, Flood 2014).
double Uniform(uint64_t seed, int64_t number) {
  uint64_t x = seed + 0x9e3779b97f4a7c15ull * (static_cast<uint64_t>(number) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1.0p-53;
}

void ApplyPenalties(const SamplingParams& params, const PenaltyState& state,
                    std::span<float> logits) {
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (params.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(params.repetition_penalty);
    for (const int32_t token : state.seen) {
      float& logit = logits[static_cast<size_t>(token)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const auto& [token, count] : state.output_counts) {
      logits[static_cast<size_t>(token)] -=
          static_cast<float>(params.frequency_penalty * count + params.presence_penalty);
    }
  }
}

// Minus infinity for none and NaN. Lanes of their own, so that no value waits for the one before.
float Largest(std::span<const float> values) {
  std::array<float, 32> lanes;
  lanes.fill(-std::numeric_limits<float>::infinity());
  const size_t whole = values.size() / lanes.size() * lanes.size();
  for (size_t i = 0; i < whole; i += lanes.size()) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      const float value = values[i + lane];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  for (size_t i = whole; i < values.size(); ++i) {
    lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  }
  return *std::max_element(lanes.begin(), lanes.end());
}

}  // namespace

bool TakesLargestLogit(const SamplingParams& params) {
  return (params.temperature <= 0 || params.top_k == 1) && params.logit_bias.empty() &&
         params.repetition_penalty == 1.0 && params.presence_penalty == 0 &&
         params.frequency_penalty == 0;
}

int32_t ArgMax(std::span<const float> logits) {
  constexpr size_t kBlock = 1024;
  size_t best = 0;  // where the block with the largest logit begins
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    if (const float value = Largest(block); value > largest) {
      largest = value;
      best = begin;
    }
  }
  const auto found =
      std::find(logits.begin() + static_cast<ptrdiff_t>(best), logits.end(), largest);
  return found == logits.end() ? 0 : static_cast<int32_t>(found - logits.begin());
}

Sampler::Sampler(const CpuKernels& kernels, int64_t vocab_size)
    : kernels_(kernels),
      probabilities_(static_cast<size_t>(vocab_size)),
      candidates_(static_cast<size_t>(vocab_size)) {}

int32_t Sampler::Sample(const SamplingParams& params, uint64_t seed, int64_t token_number,
                        const PenaltyState& penalties, std::span<float> logits) {
  CHECK_EQ(logits.size(), probabilities_.size());
  ApplyPenalties(params, penalties, logits);
  if (params.temperature <= 0 || params.top_k == 1) return ArgMax(logits);
  return Draw(params, seed, token_number, logits);
}

int32_t Sampler::Draw(const SamplingParams& params, uint64_t seed, int64_t token_number,
                      std::span<float> logits) {
  // Subtracting the largest first keeps a very small temperature from overflowing: it becomes
  // greedy.
  const float best_logit = logits[static_cast<size_t>(ArgMax(logits))];
  for (float& logit : logits) {
    logit = static_cast<float>((static_cast<double>(logit) - best_logit) / params.temperature);
  }
  kernels_.softmax(logits.data(), static_cast<int64_t>(logits.size()), probabilities_.data());
  const float best = probabilities_[static_cast<size_t>(ArgMax(probabilities_))];
  const float floor = params.min_p > 0 ? static_cast<float>(params.min_p) * best : 0.0f;

  candidates_.clear();
  double total = 0;
  for (size_t token = 0; token < probabilities_.size(); ++token) {
    if (probabilities_[token] > 0 && probabilities_[token] >= floor) {
      candidates_.push_back(static_cast<int32_t>(token));
      total += static_cast<double>(probabilities_[token]);
    }
  }
  const auto worse = [&](int32_t a, int32_t b) {
    const float pa = probabilities_[static_cast<size_t>(a)];
    const float pb = probabilities_[static_cast<size_t>(b)];
    return pa != pb ? pa < pb : a > b;
  };
  if (params.top_k > 0 && params.top_k < static_cast<int32_t>(candidates_.size())) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(),
                      [&](int32_t a, int32_t b) { return worse(b, a); });
    candidates_.resize(static_cast<size_t>(params.top_k));
    total = 0;
    for (const int32_t token : candidates_) {
      total += static_cast<double>(probabilities_[static_cast<size_t>(token)]);
    }
  }
  if (params.top_p < 1.0) {
    // A heap gives the best candidates one by one: a nucleus of a few hundred of 150,000 tokens
    // costs one pass and a few hundred pops instead of a sort. What was popped collects behind
    // heap_end.
    auto heap_end = candidates_.end();
    std::make_heap(candidates_.begin(), heap_end, worse);
    double kept = 0;
    while (heap_end != candidates_.begin()) {
      std::pop_heap(candidates_.begin(), heap_end, worse);
      --heap_end;
      kept += static_cast<double>(probabilities_[static_cast<size_t>(*heap_end)]);
      if (kept >= params.top_p * total) break;
    }
    candidates_.erase(candidates_.begin(), heap_end);
    total = kept;
  }
  const double draw = Uniform(seed, token_number) * total;
  double sum = 0;
  for (const int32_t token : candidates_) {
    sum += static_cast<double>(probabilities_[static_cast<size_t>(token)]);
    if (sum > draw) return token;
  }
  return candidates_.empty() ? ArgMax(logits) : candidates_.back();
}

GeneratedToken Sampler::Logprobs(std::span<const float> logits, int32_t token, int32_t top) {
  GeneratedToken result;
  result.token = token;
  const float normalizer = kernels_.log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
  result.logprob = logits[static_cast<size_t>(token)] - normalizer;
  if (top <= 0) return result;
  const size_t count = std::min(static_cast<size_t>(top), logits.size());
  candidates_.resize(logits.size());
  for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i] = static_cast<int32_t>(i);
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count),
                    candidates_.end(), [&](int32_t a, int32_t b) {
                      const float la = logits[static_cast<size_t>(a)];
                      const float lb = logits[static_cast<size_t>(b)];
                      return la != lb ? la > lb : a < b;
                    });
  for (size_t i = 0; i < count; ++i) {
    result.top.push_back(
        {candidates_[i], logits[static_cast<size_t>(candidates_[i])] - normalizer});
  }
  return result;
}

}  // namespace moesaic
