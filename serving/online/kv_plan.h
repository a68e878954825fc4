// KvPlan: how much memory keys and values get, and how long a request that holds.
//
// Functions of their arguments.
#pragma once

#include <cstdint>

#include "cache/kv_needs.h"
#include "core/config/model_config.h"
#include "serving/online/engine_options.h"

namespace moesaic {

// Without --max-model-len, no longer contexts than this are planned for.
constexpr int64_t kDefaultContextTokens = 32768;

// Of the model's groups of layers.
KvNeeds KvNeedsOf(const ModelConfig& config);

// Tokens of one sequence that so many blocks hold, computed at most `step_tokens` at a time, but
// not more than they have places for: windows in all layers bound what it holds, whatever its
// length.
int64_t KvTokens(const KvNeeds& needs, int64_t num_blocks, int64_t step_tokens);

// Blocks of a slab, where their number changes while an engine runs: of as many the memory of a
// layer lies together.
constexpr int64_t kKvSlabBlocks = 16;

struct KvPlan {
  int64_t num_blocks = 0;   // of all groups together
  int64_t most_blocks = 0;  // EnginePlan::most_kv_blocks
  int64_t max_context_tokens = 0;
  uint64_t bytes = 0;
};

// Slots of recurrent state; none for a model without recurrent layers.
struct StatePlan {
  int64_t sequences = 0;  // that run at once
  int64_t snapshots = 0;  // that are kept for prefixes
  int64_t slots() const { return sequences + snapshots; }
};

// As many as may run and were asked for, or as a share of `left_bytes` holds, one sequence at
// least.
StatePlan PlanState(const EngineOptions& options, const ModelConfig& config, uint64_t left_bytes);

// Tokens of a request that are planned for: what was asked for, or the model's positions within
// what is sensible by default.
int64_t WantedContext(const EngineOptions& options, const ModelConfig& config);

// Keys and values of `left_bytes`, which is what they share with the experts, in a memory of
// `whole_bytes`; at most `context` tokens a request. Throws Error(kResourceExhausted) when the
// memory that was asked for holds too little. Where it may change (EngineOptions::most_kv_bytes,
// and nobody has said how much it is) it is whole slabs, and may become what as many requests as
// run need with whole contexts.
KvPlan PlanKv(const EngineOptions& options, const ModelConfig& config, int64_t context,
              uint64_t left_bytes, uint64_t whole_bytes);

}  // namespace moesaic
