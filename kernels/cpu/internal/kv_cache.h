// How a KV block is read and written (KvLayout), by the type of its elements. Included after Vec16
// and math.h.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

// A pair is two consecutive head dimensions of the keys or two consecutive tokens of the values;
// kOdd says which of the two. `values` are those of one block, `padded` is the length of a row.
// With kScaleBytes, keys and values begin with the scales of the block's tokens, in f32.
struct Bf16Kv {
  static constexpr bool kLatent = false;
  static constexpr int64_t kBytes = 2;
  static constexpr int64_t kScaleBytes = 0;
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
  static constexpr bool kLatent = false;
  static constexpr int64_t kBytes = 4;
  static constexpr int64_t kScaleBytes = 0;
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

struct Int8Kv {
  static constexpr bool kLatent = false;
  static constexpr int64_t kBytes = 1;
  static constexpr int64_t kScaleBytes = kLineBytes;
  MOESAIC_INLINE static int64_t KeyBytes(int64_t head_dim) {
    return kScaleBytes + RoundUp(head_dim * kKvBlockTokens, kLineBytes);
  }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Key(const std::byte* keys, int64_t pair) {
    return LoadI8(keys + kScaleBytes + (2 * pair + kOdd) * kKvBlockTokens);
  }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Value(const std::byte* values, int64_t pair, int64_t padded,
                                    int64_t dim) {
    return LoadI8(values + kScaleBytes + (2 * pair + kOdd) * padded + dim);
  }
  static void StoreKey(std::byte* keys, int64_t token, int64_t d, const float* key) {
    const float inverse = StoreScale(keys, token, d, key);
    int8_t values[2 * kLanes];
    for (int64_t i = 0; i < d; i += kLanes) {
      Round(key + i, d - i, inverse, values);
      for (int64_t lane = 0; lane < MinOf(d - i, kLanes); ++lane) {
        StoreAs(keys + kScaleBytes + (i + lane) * kKvBlockTokens + token, values[lane]);
      }
    }
  }
  static void StoreValue(std::byte* values, int64_t token, int64_t padded, int64_t d,
                         const float* value) {
    const float inverse = StoreScale(values, token, d, value);
    int8_t row[2 * kLanes];
    for (int64_t i = 0; i < padded; i += kLanes) {
      Round(value + i, d - i, inverse, row);
      __builtin_memcpy(values + kScaleBytes + token * padded + i, row, kLanes);
    }
  }

 private:
  // 1 / scale. Of what is not finite the scale is NaN, and of what is next to nothing 0.
  static float StoreScale(std::byte* scales, int64_t token, int64_t d, const float* x) {
    Vec16 magnitudes = Zero();
    for (int64_t i = 0; i < d; i += kLanes) {
      magnitudes = MaxMagnitudes(LoadFirst(x + i, MinOf(d - i, kLanes)), magnitudes);
    }
    const float max = MaxMagnitude(magnitudes, Zero());
    const bool rounds = max >= 0x1p-119f && max < kInfinity;  // else 127 / max is not finite
    const float none = max < kInfinity ? 0.0f : __builtin_nanf("");
    StoreAs(scales + token * 4, rounds ? max / 127.0f : none);
    return rounds ? 127.0f / max : 0.0f;
  }
  // With an inverse of 0 all are 0, whatever x is.
  static void Round(const float* x, int64_t count, float inverse, int8_t* values) {
    const Vec16 all = inverse > 0.0f ? LoadFirst(x, MinOf(count, kLanes)) : Zero();
    StoreI8(values, Mul(all, Set(inverse)), Zero());
  }
};

// Of latent attention: keys whose first values are values (KvLayout::latent_values).
template <class Kv>
struct LatentKv : Kv {
  static constexpr bool kLatent = true;
};

template <class Kv>
MOESAIC_INLINE int64_t HeadBytes(int64_t head_dim) {
  return Kv::KeyBytes(head_dim) + Kv::kScaleBytes +
         kKvBlockTokens * RoundUp(head_dim, kLanes) * Kv::kBytes;
}

template <class Kv>
void StoreKvOf(const KvLayout& layout, std::byte* block, int64_t kv_head, int64_t token_in_block,
               const float* key, const float* value) {
  const int64_t d = layout.head_dim;
  std::byte* keys = block + kv_head * HeadBytes<Kv>(d);
  Kv::StoreKey(keys, token_in_block, d, key);
  if (layout.latent_values > 0) return;
  Kv::StoreValue(keys + Kv::KeyBytes(d), token_in_block, RoundUp(d, kLanes), d, value);
}

inline void StoreKv(const KvLayout& layout, std::byte* block, int64_t kv_head,
                    int64_t token_in_block, const float* key, const float* value) {
  if (layout.type == WeightType::kF32) {
    StoreKvOf<F32Kv>(layout, block, kv_head, token_in_block, key, value);
  } else if (layout.type == WeightType::kInt8) {
    StoreKvOf<Int8Kv>(layout, block, kv_head, token_in_block, key, value);
  } else {
    StoreKvOf<Bf16Kv>(layout, block, kv_head, token_in_block, key, value);
  }
}

}  // namespace
}  // namespace moesaic
