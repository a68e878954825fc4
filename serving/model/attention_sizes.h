// Sizes of what attention keeps while it runs. Internal to serving/model.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/config/mixer_spec.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

inline int64_t MaxChunks(const ModelLimits& limits) {
  // A context that starts in the middle of a chunk (a sliding window) touches one more.
  return (limits.max_context_tokens + kAttentionChunkTokens - 1) / kAttentionChunkTokens + 1;
}

inline int64_t GroupPartialFloats(const GroupedQuerySpec& attention) {
  return attention.group() * AttentionPartialFloats(attention.head_dim);
}

// Totals of a block of rows for one KV head or of one row for all, then what the kernel wants.
inline int64_t AttentionTotalFloats(const GroupedQuerySpec& attention) {
  return std::max(AttentionRows(attention.group()), attention.kv_heads) *
         GroupPartialFloats(attention);
}
inline int64_t WorkerScratchFloats(const GroupedQuerySpec& attention, WeightType kv) {
  return AttentionTotalFloats(attention) + AttentionScratchFloats(attention.head_dim, kv);
}

// Below this many (token, KV head) pairs per thread the chunks of a context are spread over the
// threads; above it rows of a prompt are taken together, and KV heads of a row.
constexpr int64_t kSplitItemsPerThread = 4;

}  // namespace moesaic
