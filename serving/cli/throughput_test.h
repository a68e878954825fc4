// ThroughputTest: prefill and decode rates of an engine. A repetition is a few requests with random
// tokens that go the way of every request: queue, scheduler, forward pass, sampler, sink. What
// `moesaic bench` is made of.
//
// Used by the main thread on an engine that has nothing else to do.
#pragma once

#include <cstdint>
#include <string>

#include "serving/engine/engine.h"
#include "serving/model/step_cost.h"
#include "serving/model/step_stats.h"

namespace moesaic {

struct ThroughputTest {
  bool decode = false;
  int64_t batch = 1;          // requests at once
  int64_t prompt_tokens = 1;  // of each request; prefill: what is measured
  int64_t output_tokens = 0;  // decode: what is measured of each request, its first token left out

  std::string name() const;  // "pp512", "tg128"
  // Decoded before the last request has its first token, at most, when a step takes `step_tokens`.
  int64_t early_tokens(int64_t step_tokens) const;
  // That a request takes in the KV cache.
  int64_t positions(int64_t step_tokens) const {
    return prompt_tokens + early_tokens(step_tokens) + output_tokens + 1;
  }
};

// One repetition: the measured time and what was done in it.
struct ThroughputSample {
  double seconds = 0;
  StepWork work;
  StepStats stats;

  double tokens_per_s() const { return static_cast<double>(work.tokens) / seconds; }
};

// Prefill: from submission to the first token. Decode: from the moment when every request has its
// first token to the moment when one has its last; output_tokens lie between at least.
// `step_tokens`: the engine's max_num_batched_tokens. Throws Error when a request fails.
ThroughputSample RunThroughputTest(Engine& engine, const StepCost& cost, int64_t step_tokens,
                                   const ThroughputTest& test, uint64_t seed);

}  // namespace moesaic
