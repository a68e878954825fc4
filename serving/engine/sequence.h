// Sequence: the state of one request inside the engine. Owned by the engine; touched by its thread
// only.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/kv_manager.h"
#include "cache/state_slots.h"
#include "serving/engine/engine.h"
#include "serving/engine/output_constraint.h"
#include "serving/engine/output_processor.h"
#include "serving/engine/request.h"
#include "serving/engine/stored_prefixes.h"
#include "serving/engine/thinking_budget.h"
#include "serving/model/sampler.h"
#include "tracer/routed_experts.h"
#include "tracer/routing.h"

namespace moesaic {

// What a sequence has to do with a store of prefixes (stored_prefixes.h).
struct StoredPart {
  // How far its blocks are there; shared with those that wait to be written when it has ended.
  std::shared_ptr<StoredChain> chain = nullptr;
  uint64_t read = 0;         // that runs; 0: none
  bool reads_state = false;  // and not blocks
  int64_t from_memory = 0;   // tokens that nothing was read for, and that are not counted yet
  // The state that matters when the sequence ends: behind so many blocks, by the pool's number.
  int64_t rolling_blocks = 0;
  PrefixId rolling = kEmptyPrefix;
};

// Which requests go before others: the lesser ones.
struct RequestRank {
  bool background = false;
  int32_t priority = 0;
  friend auto operator<=>(const RequestRank&, const RequestRank&) = default;  // NOLINT: clang 14
};

inline RequestRank RankOf(const EngineRequest& request) {
  return {request.background, request.priority};
}

// Of a sequence that waits (request_queue.h).
struct QueuePlace {
  RequestRank rank;
  int64_t number = 0;
  friend auto operator<=>(const QueuePlace&, const QueuePlace&) = default;  // NOLINT: clang 14
};

struct Sequence {
  RequestId id = 0;
  EngineRequest request;
  std::shared_ptr<OutputSink> sink;
  std::chrono::steady_clock::time_point arrival;

  std::vector<int32_t> tokens;  // prompt and output
  int64_t prompt_tokens = 0;
  int64_t computed_tokens = 0;  // positions whose keys and values are in `blocks`
  int64_t cached_tokens = 0;    // of the prompt, found in the prefix cache on first admission
  bool started = false;         // a step ran it
  std::chrono::steady_clock::time_point started_at;  // when that step began
  // What was told of its prompt's progress (prompt_progress.h); -1: nothing yet.
  int64_t told_tokens = -1;
  std::chrono::steady_clock::time_point told_at;
  std::chrono::steady_clock::time_point logged_at;
  int64_t queue_us = -1;        // from arrival to that step; -1: not started, or told already
  ExpertStats experts;          // of the steps that ran it, whoever else they ran
  std::vector<uint64_t> links;  // bytes of each (LinkMeter) in the same steps; empty: there is one
  bool admitted = false;        // has run before (a preempted sequence is admitted again)
  QueuePlace queued;            // while it waits
  int64_t charged_tokens = 0;   // up to this position its client was charged

  SequenceBlocks blocks;
  SequenceState state;  // of recurrent layers
  // Where its prefix leaves those of others, whose state was not kept: it will be.
  int64_t branches_at = 0;
  StoredPart stored;
  // While blocks come from the store: up to this position, and how many have been asked for. It is
  // not computed meanwhile.
  int64_t restored_until = 0;
  int64_t blocks_asked = 0;

  uint64_t seed = 0;
  PenaltyState penalties;
  std::unique_ptr<OutputProcessor> output;
  std::optional<ThinkingBudget> thinking;
  std::optional<ConstraintState> constraint;
  std::vector<GeneratedToken> prompt_logprobs;  // collected while prefill runs
  int64_t prompt_logprobs_done = 0;             // positions collected so far
  TracedRequest traced = -1;                    // in the engine's tracer, while started
  // Positions before this one were observed: what a preempted sequence computes again is not news.
  int64_t observed_tokens = 0;
  std::shared_ptr<RoutedExperts> routed;  // where the request wants it; shared with its last delta

  int64_t output_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t decode_from() const {
    return request.decode_from >= 0 ? request.decode_from : prompt_tokens;
  }
  bool wants_prompt_logprobs() const { return request.prompt_logprobs >= 0; }
};

}  // namespace moesaic
