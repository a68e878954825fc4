// What tests of the scheduler begin with and do in place of an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "serving/engine/scheduler.h"

namespace moesaic {

// Groups of layers with these windows share so many blocks; 0: they attend to all of the context.
inline KvManager WithWindows(std::vector<int64_t> windows, int64_t blocks) {
  return KvManager({std::move(windows), kKvBlockTokens, kAttentionChunkTokens}, blocks);
}

inline KvManager OneGroup(int64_t blocks) { return WithWindows({0}, blocks); }

inline std::unique_ptr<Sequence> MakeSequence(RequestId id, int64_t prompt, int64_t max_tokens,
                                              int32_t token = -1) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  for (int64_t i = 0; i < prompt; ++i) {
    sequence->tokens.push_back(
        token >= 0 ? token : static_cast<int32_t>(id * 1000 + static_cast<RequestId>(i)));
  }
  sequence->prompt_tokens = prompt;
  sequence->request.max_tokens = static_cast<int32_t>(max_tokens);
  return sequence;
}

inline std::unique_ptr<Sequence> InBackground(std::unique_ptr<Sequence> sequence) {
  sequence->request.background = true;
  return sequence;
}

inline std::unique_ptr<Sequence> WithPriority(int32_t priority,
                                              std::unique_ptr<Sequence> sequence) {
  sequence->request.priority = priority;
  return sequence;
}

// What the engine does after a step: computed sequences get a token, finished ones leave. Returns
// the ids that ended.
inline std::vector<RequestId> FinishStep(Scheduler& scheduler,
                                         std::span<const ScheduledSlice> plan) {
  const std::vector<ScheduledSlice> slices(plan.begin(), plan.end());
  scheduler.Advance();
  std::vector<RequestId> ended;
  for (const ScheduledSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    if (sequence.computed_tokens < static_cast<int64_t>(sequence.tokens.size())) continue;
    sequence.tokens.push_back(7);
    if (sequence.output_tokens() >= sequence.request.max_tokens) {
      ended.push_back(sequence.id);
      scheduler.Remove(&sequence);
    }
  }
  return ended;
}

inline std::vector<RequestId> IdsOf(std::span<const ScheduledSlice> plan) {
  std::vector<RequestId> ids;
  for (const ScheduledSlice& slice : plan) ids.push_back(slice.sequence->id);
  return ids;
}

inline constexpr auto kAlways = [](int64_t /*tokens*/) { return true; };

// What the engine does when a piece has run.
inline std::vector<RequestId> FinishPiece(Scheduler& scheduler) {
  const std::vector<ScheduledSlice> slices(scheduler.piece().begin(), scheduler.piece().end());
  scheduler.AdvancePiece();
  std::vector<RequestId> computed;
  for (const ScheduledSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    if (sequence.computed_tokens < static_cast<int64_t>(sequence.tokens.size())) continue;
    sequence.tokens.push_back(7);
    computed.push_back(sequence.id);
  }
  return computed;
}

// What the engine does when so many of a module batch have run.
inline std::vector<RequestId> FinishModuleBatch(Scheduler& scheduler, size_t count) {
  const std::vector<ScheduledSlice> slices(
      scheduler.module_batch().begin(),
      scheduler.module_batch().begin() + static_cast<std::ptrdiff_t>(count));
  scheduler.AdvanceModuleBatch(count);
  std::vector<RequestId> ended;
  for (const ScheduledSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    if (sequence.computed_tokens < std::ssize(sequence.tokens)) continue;
    sequence.tokens.push_back(7);
    if (sequence.output_tokens() < sequence.request.max_tokens) continue;
    ended.push_back(sequence.id);
    scheduler.Remove(&sequence);
  }
  return ended;
}

}  // namespace moesaic
