// What sums of products of bytes in ymm registers have in common, whichever instruction multiplies.
// Included after vec_avx2.h.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct Ints16 {
  __m256i lo;
  __m256i hi;
};
struct WeightBytes {
  __m256i lo;
  __m256i hi;
};
using FourBytes = __m256i;

MOESAIC_INLINE FourBytes LoadFour(const int8_t* x) { return _mm256_set1_epi32(LoadAs<int32_t>(x)); }
MOESAIC_INLINE __m256i UpperHalves(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(0xf0)));
}
MOESAIC_INLINE void StoreBytes(std::byte* p, __m256i bytes) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), bytes);
}
MOESAIC_INLINE void WidenLine(const std::byte* line, std::byte* out) {
  const __m256i lo = LoadInts(line);
  const __m256i hi = LoadInts(line + 32);
  StoreBytes(out, UpperHalves(_mm256_slli_epi32(lo, 4)));
  StoreBytes(out + 32, UpperHalves(_mm256_slli_epi32(hi, 4)));
  StoreBytes(out + 64, UpperHalves(lo));
  StoreBytes(out + 96, UpperHalves(hi));
}
MOESAIC_INLINE Vec16 ToFloats(Ints16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

}  // namespace
}  // namespace moesaic
