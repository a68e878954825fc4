// How a KV block is read and written (KvLayout), by the type of its elements. Included after Vec16
// and math.h.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

// A pair is two consecutive head dimensions of the keys or two consecutive tokens of the values;
// kOdd says which of the two. `values` are those of one block, `padded` is the length of a row.
struct Bf16Kv {
  static constexpr int64_t kBytes = 2;
  MOESAIC_INLINE static int64_t KeyBytes(int64_t head_dim) {
    return CeilDiv(head_dim, 2) * kLineBytes;
  }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Key(const std::byte* keys, int64_t pair) {
    return kOdd ? LoadOdd(keys + pair * kLineBytes) : LoadEven(keys + pair * kLineBytes);
  }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Value(const std::byte* values, int64_t pair, int64_t padded,
                                    int64_t dim) {
    const std::byte* line = values + (pair * padded + dim) * 4;
    return kOdd ? LoadOdd(line) : LoadEven(line);
  }
  MOESAIC_INLINE static void StoreKey(std::byte* keys, int64_t token, int64_t d, const float* key) {
    for (int64_t i = 0; i < d; i += 2) {
      const uint32_t low = RoundBf16(key[i]);
      const uint32_t high = i + 1 < d ? RoundBf16(key[i + 1]) : 0;
      StoreAs(keys + i / 2 * kLineBytes + token * 4, low | high << 16);
    }
  }
  MOESAIC_INLINE static void StoreValue(std::byte* values, int64_t token, int64_t padded, int64_t d,
                                        const float* value) {
    std::byte* row = values + token / 2 * padded * 4 + token % 2 * 2;
    for (int64_t i = 0; i < padded; ++i) {
      StoreAs(row + i * 4, i < d ? RoundBf16(value[i]) : uint16_t{0});
    }
  }
};

struct F32Kv {
  static constexpr int64_t kBytes = 4;
  MOESAIC_INLINE static int64_t KeyBytes(int64_t head_dim) { return head_dim * kLineBytes; }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Key(const std::byte* keys, int64_t pair) {
    return Load(keys + (2 * pair + kOdd) * kLineBytes);
  }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Value(const std::byte* values, int64_t pair, int64_t padded,
                                    int64_t dim) {
    return Load(values + ((2 * pair + kOdd) * padded + dim) * kBytes);
  }
  MOESAIC_INLINE static void StoreKey(std::byte* keys, int64_t token, int64_t d, const float* key) {
    for (int64_t i = 0; i < d; ++i) StoreAs(keys + i * kLineBytes + token * 4, key[i]);
  }
  MOESAIC_INLINE static void StoreValue(std::byte* values, int64_t token, int64_t padded, int64_t d,
                                        const float* value) {
    std::byte* row = values + token * padded * kBytes;
    for (int64_t i = 0; i < d; i += kLanes) {
      Store(row + i * kBytes, LoadFirst(value + i, MinOf(d - i, kLanes)));
    }
  }
};

template <class Kv>
MOESAIC_INLINE int64_t HeadBytes(int64_t head_dim) {
  return Kv::KeyBytes(head_dim) + kKvBlockTokens * RoundUp(head_dim, kLanes) * Kv::kBytes;
}

template <class Kv>
void StoreKvOf(const KvLayout& layout, std::byte* block, int64_t kv_head, int64_t token_in_block,
               const float* key, const float* value) {
  const int64_t d = layout.head_dim;
  std::byte* keys = block + kv_head * HeadBytes<Kv>(d);
  Kv::StoreKey(keys, token_in_block, d, key);
  Kv::StoreValue(keys + Kv::KeyBytes(d), token_in_block, RoundUp(d, kLanes), d, value);
}

inline void StoreKv(const KvLayout& layout, std::byte* block, int64_t kv_head,
                    int64_t token_in_block, const float* key, const float* value) {
  if (layout.type == WeightType::kF32) {
    StoreKvOf<F32Kv>(layout, block, kv_head, token_in_block, key, value);
  } else {
    StoreKvOf<Bf16Kv>(layout, block, kv_head, token_in_block, key, value);
  }
}

}  // namespace
}  // namespace moesaic
