// Discrete simulation of the throughput scheduler: which sequences prefill and decode in each
// iteration, given real lengths, a paged KV cache and a token budget (MoE-Lens 6.3).
//
// One-shot and deterministic; owns nothing beyond the call. Time comes from the caller.
//
// Normal mode: all decoding sequences take a step; prompts are admitted from the front of the
// queue while budget and blocks last. Preemption mode, when the next token of the decoding
// sequences needs more blocks than are free: the newest leave until the rest fits, nothing is
// admitted, and they wait, in the order in which they left and before all others, as prompts that
// include what they generated.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/perf/workload.h"

namespace moesaic {

struct SchedulerLimits {
  int64_t kv_blocks = 0;  // of all groups of layers together
  int64_t block_tokens = 16;
  int64_t token_budget = 0;    // prefill and decode tokens of one iteration
  int64_t most_sequences = 0;  // decoding at once; 0: no limit
  // [groups] tokens of a sequence that have blocks at once, at most; 0: all of them.
  std::vector<int64_t> held_tokens = {0};
  // A batch begins when the one before it has ended, and a sequence reserves what it may come to:
  // the schedules that do not mix prefill and decode.
  bool whole_batches = false;
  // Prompts are cut at the token budget, so that every iteration uses all of it: the scheduler of
  // this program's engines (serving/engine/scheduler); there the last to be preempted is the first
  // to come back. Whole prompts wait for room in the budget, else.
  bool chunked_prefill = false;
};

// What one iteration processes.
struct IterationLoad {
  int64_t decode_sequences = 0;
  int64_t decode_context = 0;  // KV tokens that decoding attends to, summed
  int64_t prefill_tokens = 0;
  int64_t prefill_positions = 0;  // pairs of query and key that prefill attends to, summed
  int64_t prompts_ended = 0;      // whose last token is among these: they want logits, too
};

struct SchedulerResult {
  int64_t iterations = 0;
  int64_t preemptions = 0;
  int64_t generated_tokens = 0;
  int64_t prefill_tokens = 0;  // with what preemption repeats
  int64_t most_decoding = 0;
  int64_t most_blocks = 0;
  double seconds = 0;
  double prefill_only_s = 0;  // of iterations that decoded nothing
};

// `iteration_s` gives the duration of one iteration. A prompt beyond the budget runs alone. Throws
// Error(kResourceExhausted) when one request alone needs more blocks than there are.
SchedulerResult SimulateScheduler(std::span<const RequestLengths> requests,
                                  const SchedulerLimits& limits,
                                  const std::function<double(const IterationLoad&)>& iteration_s);

}  // namespace moesaic
