// Sums of byte columns in zmm registers.
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

template <int kLines, bool kPrefetch>
MOESAIC_INLINE void AddColumnLines(const uint8_t* const* columns, const ColumnWeight* weights,
                                   int64_t num_columns, int shift, uint32_t* scores, int64_t at) {
  __m512i even[kLines];
  __m512i odd[kLines];
  MOESAIC_UNROLL
  for (int line = 0; line < kLines; ++line) even[line] = odd[line] = _mm512_setzero_si512();
  for (int64_t c = 0; c < num_columns; ++c) {
    const __m512i w_even = _mm512_set1_epi32(static_cast<int>(weights[c].even));
    const __m512i w_odd = _mm512_set1_epi32(static_cast<int>(weights[c].odd));
    MOESAIC_UNROLL
    for (int line = 0; line < kLines; ++line) {
      if (kPrefetch) __builtin_prefetch(columns[c] + at + (kLines + line) * 64);
      const __m512i bytes = _mm512_loadu_si512(columns[c] + at + line * 64);
      even[line] = _mm512_add_epi16(even[line], _mm512_maddubs_epi16(bytes, w_even));
      odd[line] = _mm512_add_epi16(odd[line], _mm512_maddubs_epi16(bytes, w_odd));
    }
  }
  const __m128i count = _mm_cvtsi32_si128(shift);
  const __m512i zero = _mm512_setzero_si512();
  MOESAIC_UNROLL
  for (int line = 0; line < kLines; ++line) {
    // Per 128-bit lane q: entries 16 q to 16 q + 7 and 16 q + 8 to 16 q + 15, then fours of them.
    const __m512i low = _mm512_unpacklo_epi16(even[line], odd[line]);
    const __m512i high = _mm512_unpackhi_epi16(even[line], odd[line]);
    const __m512i a = _mm512_unpacklo_epi16(low, zero);
    const __m512i b = _mm512_unpackhi_epi16(low, zero);
    const __m512i c = _mm512_unpacklo_epi16(high, zero);
    const __m512i d = _mm512_unpackhi_epi16(high, zero);
    // A 4 x 4 transposition of 128-bit lanes.
    const __m512i ab_low = _mm512_shuffle_i32x4(a, b, 0x44);
    const __m512i ab_high = _mm512_shuffle_i32x4(a, b, 0xee);
    const __m512i cd_low = _mm512_shuffle_i32x4(c, d, 0x44);
    const __m512i cd_high = _mm512_shuffle_i32x4(c, d, 0xee);
    const __m512i sums[4] = {
        _mm512_shuffle_i32x4(ab_low, cd_low, 0x88), _mm512_shuffle_i32x4(ab_low, cd_low, 0xdd),
        _mm512_shuffle_i32x4(ab_high, cd_high, 0x88), _mm512_shuffle_i32x4(ab_high, cd_high, 0xdd)};
    MOESAIC_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t* out = scores + at + line * 64 + i * 16;
      _mm512_storeu_si512(
          out, _mm512_add_epi32(_mm512_loadu_si512(out), _mm512_sll_epi32(sums[i], count)));
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
  if (num_columns > kStreams) {
    for (; at + 8 * 64 <= n; at += 8 * 64) {
      AddColumnLines<8, true>(columns, pairs, num_columns, shift, scores, at);
    }
  } else {
    for (; at + 4 * 64 <= n; at += 4 * 64) {
      AddColumnLines<4, false>(columns, pairs, num_columns, shift, scores, at);
    }
  }
  for (; at < n; at += 64) {
    AddColumnLines<1, false>(columns, pairs, num_columns, shift, scores, at);
  }
}

int64_t FindAbove(const uint32_t* scores, const float* scales, int64_t begin, int64_t n,
                  float threshold) {
  const __m512 limit = _mm512_set1_ps(threshold);
  __mmask16 wanted = static_cast<__mmask16>(0xffffu << (begin & 15));
  for (int64_t i = begin & ~int64_t{15}; i < n; i += 16, wanted = 0xffff) {
    const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(scores + i)),
                                         _mm512_loadu_ps(scales + i));
    const __mmask16 above = _mm512_mask_cmp_ps_mask(wanted, product, limit, _CMP_GT_OQ);
    if (above != 0) return i + __builtin_ctz(above);
  }
  return n;
}

}  // namespace
}  // namespace moesaic
