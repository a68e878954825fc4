// What a forward pass runs over, and the limits that its memory is sized for. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "cache/kv_manager.h"
#include "cache/kv_memory.h"
#include "cache/state_slots.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// Consecutive tokens of one sequence. Its keys and values of the positions before are in the KV
// memory.
struct SequenceSlice {
  int64_t first_row = 0;  // row of the batch of its first token
  int64_t num_tokens = 0;
  int64_t start_position = 0;       // of its first token
  std::span<const int32_t> blocks;  // KV blocks of positions [0, start_position + num_tokens)
  // Blocks of each group of layers (core/config/kv_groups.h), as many as of the first, which
  // `blocks` names; null: of G groups, group g has block n G + g of the pool where `blocks` has n.
  const SequenceBlocks* tables = nullptr;
  SequenceState state = {};  // where a model with recurrent layers has the sequence's
  int32_t request = 0;       // the caller's number, for hooks
  bool prefill = false;
  // Tokens from this position on are decoded: ModelLimits::defer_experts is for them.
  int64_t decode_from = std::numeric_limits<int64_t>::max();
};

// Block `index` of the slice's sequence in one of so many groups; SequenceBlocks::kGivenBack where
// no position of the slice attends to it.
inline int32_t BlockOf(const SequenceSlice& slice, size_t group, size_t groups, size_t index) {
  if (slice.tables != nullptr) return slice.tables->tables[group].blocks[index];
  return slice.blocks[index] * static_cast<int32_t>(groups) + static_cast<int32_t>(group);
}

struct ForwardBatch {
  std::span<const int32_t> tokens;        // [rows]
  std::span<const SequenceSlice> slices;  // rows in order, none left out
};

// Consecutive rows, or slices, of a batch.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};
struct SliceRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Consecutive slices have consecutive rows.
inline RowRange RowsOf(const ForwardBatch& batch, SliceRange slices) {
  if (slices.begin == slices.end) return {};
  const SequenceSlice& last = batch.slices[static_cast<size_t>(slices.end) - 1];
  return {batch.slices[static_cast<size_t>(slices.begin)].first_row,
          last.first_row + last.num_tokens};
}

struct ModelLimits {
  int64_t max_batch_tokens = 512;
  int64_t max_context_tokens = 4096;
  int64_t num_kv_blocks = 0;    // of all groups of layers together, as many as there ever are
  int64_t kv_slab_blocks = 0;   // see KvSlabs; 0: their number stays
  int64_t num_state_slots = 0;  // of a model with recurrent layers
  int64_t max_logit_rows = 64;
  int64_t max_sequences = 64;  // slices of a batch
  WeightType kv_type = WeightType::kBf16;
  // Of a decoded token's experts the so many with the lowest router weights, but at least two less
  // than all, are added one layer later; in no case those of the last layer. 0: none.
  int64_t defer_experts = 0;
  // With a dense part on a device: attention and its keys and values are the host's all the same.
  bool host_attention = false;
  // With a dense part on devices: products of many rows are a library's (kernels/cuda/gemm.h).
  bool gemm_library = false;
};

// Of blocks of so many bytes in all layers.
inline KvSlabs KvSlabsOf(const ModelLimits& limits, uint64_t block_bytes) {
  const int64_t blocks = limits.kv_slab_blocks > 0 ? limits.kv_slab_blocks
                                                   : std::max<int64_t>(1, limits.num_kv_blocks);
  return {.blocks = blocks, .slab_bytes = static_cast<uint64_t>(blocks) * block_bytes};
}

}  // namespace moesaic
