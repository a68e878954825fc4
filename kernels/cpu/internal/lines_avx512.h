// ByteLine: a line of 16 lanes of four bytes, in one zmm register. Included after vec_avx512.h.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct ByteLine {
  __m512i v;
};

MOESAIC_INLINE ByteLine LoadLine(const void* p) { return {_mm512_loadu_si512(p)}; }
MOESAIC_INLINE void StoreLine(void* p, ByteLine a) { _mm512_storeu_si512(p, a.v); }
template <int kShift, int kMask>
MOESAIC_INLINE ByteLine Bits(ByteLine a) {
  static_assert(kMask <= 255 >> kShift);
  const __m512i shifted = kShift == 0 ? a.v : _mm512_srli_epi16(a.v, kShift);
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(kMask)))};
}
template <int kShift, int kMask>
MOESAIC_INLINE ByteLine BitsUp(ByteLine a) {
  static_assert((kMask & ((1 << kShift) - 1)) == 0);
  return {
      _mm512_and_si512(_mm512_slli_epi16(a.v, kShift), _mm512_set1_epi8(static_cast<char>(kMask)))};
}
MOESAIC_INLINE ByteLine Or(ByteLine a, ByteLine b) { return {_mm512_or_si512(a.v, b.v)}; }
MOESAIC_INLINE ByteLine AddToBytes(ByteLine a, int b) {
  return {_mm512_add_epi8(a.v, _mm512_set1_epi8(static_cast<char>(b)))};
}
MOESAIC_INLINE ByteLine Look(const uint8_t (&table)[16], ByteLine at) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), at.v)};
}
template <int kShift, int kMask>
MOESAIC_INLINE Vec16 LaneBits(ByteLine a) {
  return {_mm512_cvtepi32_ps(
      _mm512_and_si512(_mm512_srli_epi32(a.v, kShift), _mm512_set1_epi32(kMask)))};
}
template <int kByte>
MOESAIC_INLINE Vec16 SignedByteOf(ByteLine a) {
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - 8 * kByte), 24))};
}

}  // namespace
}  // namespace moesaic
