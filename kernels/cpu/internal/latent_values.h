// The values of latent attention (KvLayout::latent_values) out of a block's keys: from lines of
// tokens to rows of dimensions, as a cache of keys and values has them. Copies, so they change no
// bit of what they move, initialised or not. Included after Vec16 and math.h.
#pragma once

#include "kernels/cpu/internal/kv_cache.h"

namespace moesaic {
namespace {

// Of a block.
template <class Kv>
MOESAIC_INLINE int64_t LatentValueBytes(int64_t value_dim) {
  return kKvBlockTokens * RoundUp(value_dim, kLanes) * Kv::kBytes;
}

// Vectors of the compiler's own, which it makes of what the instruction set has. A lane of 64 bits
// is two tokens of two dimensions.
using FourPairs = uint64_t __attribute__((vector_size(32)));
using SixteenHalves = uint16_t __attribute__((vector_size(32)));

// Four lines of pairs of dimensions, of which `half` says the tokens, to four pairs of tokens.
MOESAIC_INLINE void TurnFourLines(const std::byte* keys, int64_t half, std::byte* values,
                                  int64_t row_bytes) {
  FourPairs lines[4];
  MOESAIC_UNROLL
  for (int i = 0; i < 4; ++i) {
    SixteenHalves line;
    __builtin_memcpy(&line, keys + i * kLineBytes + half * 32, 32);
    const SixteenHalves turned =
        __builtin_shufflevector(line, line, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    __builtin_memcpy(&lines[i], &turned, 32);
  }
  const FourPairs low01 = __builtin_shufflevector(lines[0], lines[1], 0, 4, 2, 6);
  const FourPairs high01 = __builtin_shufflevector(lines[0], lines[1], 1, 5, 3, 7);
  const FourPairs low23 = __builtin_shufflevector(lines[2], lines[3], 0, 4, 2, 6);
  const FourPairs high23 = __builtin_shufflevector(lines[2], lines[3], 1, 5, 3, 7);
  const FourPairs rows[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                             __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                             __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                             __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  MOESAIC_UNROLL
  for (int64_t i = 0; i < 4; ++i) {
    __builtin_memcpy(values + (half * 4 + i) * row_bytes, &rows[i], 32);
  }
}

// values: LatentValueBytes. Columns past the keys are zero.
template <class Kv>
void TurnKeys(const std::byte* keys, int64_t value_dim, std::byte* values) {
  const int64_t padded = RoundUp(value_dim, kLanes);
  if constexpr (Kv::kBytes == 4) {
    for (int64_t dim = 0; dim < padded; ++dim) {
      for (int64_t token = 0; token < kKvBlockTokens; ++token) {
        StoreAs(values + (token * padded + dim) * 4,
                dim < value_dim ? LoadAs<uint32_t>(keys + dim * kLineBytes + token * 4) : 0u);
      }
    }
  } else {
    static_assert(Kv::kBytes == 2);
    const int64_t row_bytes = padded * 4;  // of two tokens
    const int64_t pairs = CeilDiv(value_dim, 2);
    int64_t pair = 0;
    for (; pair + 4 <= pairs; pair += 4) {
      TurnFourLines(keys + pair * kLineBytes, 0, values + pair * 8, row_bytes);
      TurnFourLines(keys + pair * kLineBytes, 1, values + pair * 8, row_bytes);
    }
    for (; pair < padded / 2; ++pair) {
      for (int64_t tokens = 0; tokens < kKvBlockTokens / 2; ++tokens) {
        for (int64_t i = 0; i < 4; ++i) {
          const std::byte* const from =
              keys + pair * kLineBytes + (2 * tokens + i % 2) * 4 + i / 2 * 2;
          StoreAs(values + tokens * row_bytes + pair * 8 + i * 2,
                  pair < pairs ? LoadAs<uint16_t>(from) : uint16_t{0});
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
