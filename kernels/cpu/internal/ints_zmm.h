// What sums of products of bytes in zmm registers have in common, whichever instruction multiplies.
// Included after vec_avx512.h.
#pragma once

#include "kernels/cpu/internal/lines_avx512.h"

namespace moesaic {
namespace {

using Ints16 = __m512i;
using FourBytes = __m512i;

MOESAIC_INLINE FourBytes LoadFour(const int8_t* x) { return _mm512_set1_epi32(LoadAs<int32_t>(x)); }

// Bytes of all subgroups, [16][4]; of one subgroup factors are 16-bit numbers.
struct Multipliers {
  __m512i factors;
  __m512i zeros;
};
struct HalfScale {
  __m512i factors;
  __m512i high_factors;  // times 2^12
  __m512i zeros;
};
MOESAIC_INLINE Multipliers LoadMultipliers(const std::byte* line) {
  const __m512i bytes = _mm512_loadu_si512(line);
  const __m512i factors = _mm512_and_si512(bytes, _mm512_set1_epi8(127));
  // At most 15: 8 of them stay in their byte.
  const __m512i zeros =
      _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(128)), _mm512_slli_epi16(factors, 3));
  return {factors, _mm512_mask_add_epi8(zeros, _mm512_movepi8_mask(bytes), zeros, factors)};
}
MOESAIC_INLINE HalfScale ScaleOfHalves(const Multipliers& group, int64_t subgroup) {
  const auto at = static_cast<int>(subgroup);
  const __m512i words = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128));
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  const __m512i factors = _mm512_shuffle_epi8(
      group.factors, _mm512_add_epi8(words, _mm512_set1_epi32(at * 0x00010001)));
  return {
      factors, _mm512_slli_epi16(factors, 12),
      _mm512_shuffle_epi8(group.zeros, _mm512_add_epi8(bytes, _mm512_set1_epi32(at * 0x01010101)))};
}
// No product of a half and a factor needs more than its byte.
MOESAIC_INLINE __m512i LowBytes(const std::byte* line, const HalfScale& scale) {
  const __m512i halves = _mm512_and_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(15));
  return _mm512_add_epi8(_mm512_mullo_epi16(halves, scale.factors), scale.zeros);
}
// The upper 16 bits of a product with halves times 2^4.
MOESAIC_INLINE __m512i HighBytes(const std::byte* line, const HalfScale& scale) {
  const __m512i halves =
      _mm512_and_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(static_cast<char>(0xf0)));
  return _mm512_add_epi8(_mm512_mulhi_epu16(halves, scale.high_factors), scale.zeros);
}
MOESAIC_INLINE void WidenLine(const std::byte* line, const HalfScale& scale, std::byte* out) {
  _mm512_store_si512(out, LowBytes(line, scale));
  _mm512_store_si512(out + kLineBytes, HighBytes(line, scale));
}
MOESAIC_INLINE Vec16 ToFloats(Ints16 a) { return {_mm512_cvtepi32_ps(a)}; }

}  // namespace
}  // namespace moesaic
