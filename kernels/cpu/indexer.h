// Attention to chosen positions (IndexerSpec): arguments of the kernels that score positions and
// gather the keys of those chosen, CpuKernels::index_scores and gather_keys, and the choice itself.
//
// Plain data on the caller's memory, and a function of its arguments; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace moesaic {

// One token's scores of the positions of some blocks of its sequence: sum over heads h, ascending,
// of weights[h] * max(0, q_h . k), each product one chain of multiply-adds in ascending dimension.
// A position's score has the same bits whatever the other positions of a call.
struct IndexScoreArgs {
  const float* q = nullptr;        // [heads, layout.head_dim]
  const float* weights = nullptr;  // [heads]
  int64_t heads = 0;
  KvLayout layout;  // of the keys, kBf16 or kF32; one head without values (latent_values)
  // Block i of the sequence: the keys' panel is key_offset bytes behind its beginning.
  const std::byte* const* blocks = nullptr;
  int64_t key_offset = 0;
  int64_t block_begin = 0;
  int64_t block_end = 0;
  // Position p's is scores[p], of all positions of these blocks.
  float* scores = nullptr;
};

// Tokens of a sequence, as if they followed each other: token positions[i] becomes token i % 16 of
// block i / 16 of `out`.
struct GatherKeysArgs {
  KvLayout layout;  // kBf16 or kF32; one head without values
  const std::byte* const* blocks = nullptr;
  const int32_t* positions = nullptr;  // [count], ascending
  int64_t count = 0;
  std::byte* out = nullptr;  // [ceil(count / 16)][layout.key_bytes()]
};

// positions[0 .. k): those of [0, count), count at least k, with the highest scores, in ascending
// order; of equal scores (-0 is 0) the lower positions. A NaN counts by its bits, as something
// above or below all numbers.
void TopPositions(const float* scores, int64_t count, int64_t k, int32_t* positions);

}  // namespace moesaic
