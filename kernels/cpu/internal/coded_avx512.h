// Coded bf16 weights become lines of bf16, in zmm registers. Included after vec_avx512.h.
#pragma once

#include "kernels/cpu/internal/coded_layout.h"

namespace moesaic {
namespace {

// Lines 2 kHalf and 2 kHalf + 1 of the step at `step`, exceptions aside.
template <int kHalf>
MOESAIC_INLINE void DecodeHalf(const std::byte* step, const std::byte* panel, PairLine& first,
                               PairLine& second) {
  const auto table = [&](int64_t offset) {
    return _mm512_broadcast_i32x4(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + offset)));
  };
  const __m512i signs = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i rest = _mm512_loadu_si512(step + kHalf * kLineBytes);
  const __m512i both = _mm512_loadu_si512(step + kCodedNumbersOffset);
  const __m512i numbers =
      _mm512_and_si512(kHalf == 0 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
  // signs ? rest : upper bits, and signs ? lowest bit : rest
  const __m512i high =
      _mm512_ternarylogic_epi64(_mm512_shuffle_epi8(table(0), numbers), rest, signs, 0xd8);
  const __m512i low = _mm512_ternarylogic_epi64(
      _mm512_shuffle_epi8(table(kCodedLowOffset), numbers), rest, signs, 0xe4);
  first = _mm512_unpacklo_epi8(low, high);
  second = _mm512_unpackhi_epi8(low, high);
}

// The other way: two lines of bf16 as a line of signs and mantissas and one of the exponents'
// numbers. Returns whether one of these is kCodedExponents.
MOESAIC_INLINE bool CodeHalf(const std::byte* lines, const uint8_t (&exponents)[kCodedExponents],
                             std::byte* rest, std::byte* numbers) {
  const __m512i first = _mm512_loadu_si512(lines);
  const __m512i second = _mm512_loadu_si512(lines + kLineBytes);
  const __m512i bytes = _mm512_set1_epi16(255);
  const __m512i high =
      _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
  const __m512i low =
      _mm512_packus_epi16(_mm512_and_si512(first, bytes), _mm512_and_si512(second, bytes));
  const __m512i signs = _mm512_set1_epi8(static_cast<char>(0x80));
  _mm512_storeu_si512(rest, _mm512_ternarylogic_epi64(signs, high, low, 0xca));
  const __m512i lowest = _mm512_and_si512(_mm512_srli_epi16(low, 7), _mm512_set1_epi8(1));
  const __m512i found = _mm512_or_si512(_mm512_add_epi8(high, high), lowest);
  __m512i number = _mm512_set1_epi8(kCodedExponents);
  for (int i = kCodedExponents - 1; i >= 0; --i) {
    const __m512i exponent = _mm512_set1_epi8(static_cast<char>(exponents[i]));
    number = _mm512_mask_mov_epi8(number, _mm512_cmpeq_epi8_mask(found, exponent),
                                  _mm512_set1_epi8(static_cast<char>(i)));
  }
  _mm512_storeu_si512(numbers, number);
  return _mm512_cmpeq_epi8_mask(number, _mm512_set1_epi8(kCodedExponents)) != 0;
}

constexpr int kCodedDirectRows = 4;
constexpr int CodedTilePanels(int rows) { return rows <= 2 ? 4 : 2; }

}  // namespace
}  // namespace moesaic
