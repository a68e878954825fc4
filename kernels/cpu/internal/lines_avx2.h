// ByteLine: a line of 16 lanes of four bytes, in two ymm registers. Included after vec_avx2.h.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct ByteLine {
  __m256i lo;
  __m256i hi;
};

MOESAIC_INLINE ByteLine LoadLine(const void* p) {
  const auto* halves = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
MOESAIC_INLINE void StoreLine(void* p, ByteLine a) {
  auto* halves = static_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, a.lo);
  _mm256_storeu_si256(halves + 1, a.hi);
}
MOESAIC_INLINE ByteLine And(ByteLine a, int mask) {
  const __m256i bytes = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(a.lo, bytes), _mm256_and_si256(a.hi, bytes)};
}
template <int kShift, int kMask>
MOESAIC_INLINE ByteLine Bits(ByteLine a) {
  static_assert(kMask <= 255 >> kShift);
  if constexpr (kShift == 0) return And(a, kMask);
  return And({_mm256_srli_epi16(a.lo, kShift), _mm256_srli_epi16(a.hi, kShift)}, kMask);
}
template <int kShift, int kMask>
MOESAIC_INLINE ByteLine BitsUp(ByteLine a) {
  static_assert((kMask & ((1 << kShift) - 1)) == 0);
  return And({_mm256_slli_epi16(a.lo, kShift), _mm256_slli_epi16(a.hi, kShift)}, kMask);
}
MOESAIC_INLINE ByteLine Or(ByteLine a, ByteLine b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
MOESAIC_INLINE ByteLine AddToBytes(ByteLine a, int b) {
  const __m256i bytes = _mm256_set1_epi8(static_cast<char>(b));
  return {_mm256_add_epi8(a.lo, bytes), _mm256_add_epi8(a.hi, bytes)};
}
MOESAIC_INLINE ByteLine Look(const uint8_t (&table)[16], ByteLine at) {
  const __m256i entries =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(entries, at.lo), _mm256_shuffle_epi8(entries, at.hi)};
}
template <int kShift, int kMask>
MOESAIC_INLINE Vec16 LaneBits(ByteLine a) {
  const __m256i mask = _mm256_set1_epi32(kMask);
  return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(a.lo, kShift), mask)),
          _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(a.hi, kShift), mask))};
}
template <int kByte>
MOESAIC_INLINE Vec16 SignedByteOf(ByteLine a) {
  constexpr int kUp = 24 - 8 * kByte;
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(a.lo, kUp), 24)),
          _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(a.hi, kUp), 24))};
}

}  // namespace
}  // namespace moesaic
