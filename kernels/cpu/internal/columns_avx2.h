// Sums of byte columns in ymm registers.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

// VPMADDUBSW multiplies unsigned by signed bytes and adds neighbours. With every second weight zero
// it is a widening product of the even, or of the odd, bytes of a column, without a shuffle.
struct ColumnWeight {
  uint32_t even;  // bytes w, 0, w, 0
  uint32_t odd;   // bytes 0, w, 0, w
};

// More columns than these are more streams than the hardware follows: then each step asks for what
// it will want of a column one round later.
constexpr int64_t kStreams = 16;
constexpr int kColumnVectors = 4;  // of 32 entries each: 8 accumulators of 16 registers

MOESAIC_INLINE __m256i LoadBytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

template <int kVectors, bool kPrefetch>
MOESAIC_INLINE void AddColumnVectors(const uint8_t* const* columns, const ColumnWeight* weights,
                                     int64_t num_columns, int shift, uint32_t* scores, int64_t at) {
  __m256i even[kVectors];
  __m256i odd[kVectors];
  MOESAIC_UNROLL
  for (int v = 0; v < kVectors; ++v) even[v] = odd[v] = _mm256_setzero_si256();
  for (int64_t c = 0; c < num_columns; ++c) {
    const __m256i w_even = _mm256_set1_epi32(static_cast<int>(weights[c].even));
    const __m256i w_odd = _mm256_set1_epi32(static_cast<int>(weights[c].odd));
    MOESAIC_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (kPrefetch && v % 2 == 0) __builtin_prefetch(columns[c] + at + (kVectors + v) * 32);
      const __m256i bytes = LoadBytes(columns[c] + at + v * 32);
      even[v] = _mm256_add_epi16(even[v], _mm256_maddubs_epi16(bytes, w_even));
      odd[v] = _mm256_add_epi16(odd[v], _mm256_maddubs_epi16(bytes, w_odd));
    }
  }
  const __m128i count = _mm_cvtsi32_si128(shift);
  const __m256i zero = _mm256_setzero_si256();
  MOESAIC_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    // Per 128-bit lane q: entries 16 q to 16 q + 7 and 16 q + 8 to 16 q + 15, then fours of them.
    const __m256i low = _mm256_unpacklo_epi16(even[v], odd[v]);
    const __m256i high = _mm256_unpackhi_epi16(even[v], odd[v]);
    const __m256i a = _mm256_unpacklo_epi16(low, zero);
    const __m256i b = _mm256_unpackhi_epi16(low, zero);
    const __m256i c = _mm256_unpacklo_epi16(high, zero);
    const __m256i d = _mm256_unpackhi_epi16(high, zero);
    const __m256i sums[4] = {
        _mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(c, d, 0x20),
        _mm256_permute2x128_si256(a, b, 0x31), _mm256_permute2x128_si256(c, d, 0x31)};
    MOESAIC_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t* out = scores + at + v * 32 + i * 8;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          _mm256_add_epi32(LoadBytes(out), _mm256_sll_epi32(sums[i], count)));
    }
  }
}

void AddColumns(const uint8_t* const* columns, const uint8_t* weights, int64_t num_columns,
                int shift, uint32_t* scores, int64_t n) {
  ColumnWeight pairs[kMaxColumnWeightSum];
  for (int64_t c = 0; c < num_columns; ++c) {
    pairs[c] = {weights[c] * 0x00010001u, weights[c] * 0x01000100u};
  }
  int64_t at = 0;
  constexpr int64_t kStep = kColumnVectors * 32;
  if (num_columns > kStreams) {
    for (; at + kStep <= n; at += kStep) {
      AddColumnVectors<kColumnVectors, true>(columns, pairs, num_columns, shift, scores, at);
    }
  } else {
    for (; at + kStep <= n; at += kStep) {
      AddColumnVectors<kColumnVectors, false>(columns, pairs, num_columns, shift, scores, at);
    }
  }
  for (; at < n; at += 64) {
    AddColumnVectors<2, false>(columns, pairs, num_columns, shift, scores, at);
  }
}

int64_t FindAbove(const uint32_t* scores, const float* scales, int64_t begin, int64_t n,
                  float threshold) {
  const __m256 limit = _mm256_set1_ps(threshold);
  int wanted = 0xff << (begin & 7);
  for (int64_t i = begin & ~int64_t{7}; i < n; i += 8, wanted = 0xff) {
    const __m256 product =
        _mm256_mul_ps(_mm256_cvtepi32_ps(LoadBytes(scores + i)), _mm256_loadu_ps(scales + i));
    const int above = wanted & _mm256_movemask_ps(_mm256_cmp_ps(product, limit, _CMP_GT_OQ));
    if (above != 0) return i + __builtin_ctz(static_cast<unsigned>(above));
  }
  return n;
}

}  // namespace
}  // namespace moesaic
