// Sums of products of bytes in ymm registers, by VPDPBUSD. Included after vec_avx2.h.
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

MOESAIC_INLINE Ints16 StartOfGroup(int32_t correction) {
  return {_mm256_set1_epi32(correction), _mm256_set1_epi32(correction)};
}
MOESAIC_INLINE FourBytes LoadFour(const int8_t* x) { return _mm256_set1_epi32(LoadAs<int32_t>(x)); }
MOESAIC_INLINE __m256i UpperHalves(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(static_cast<char>(0xf0)));
}
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) {
  return {LoadInts(line), LoadInts(line + 32)};
}
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line) {
  return {UpperHalves(_mm256_slli_epi32(LoadInts(line), 4)),
          UpperHalves(_mm256_slli_epi32(LoadInts(line + 32), 4))};
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line) {
  return {UpperHalves(LoadInts(line)), UpperHalves(LoadInts(line + 32))};
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
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  return {_mm256_dpbusd_avx_epi32(sum.lo, w.lo, x), _mm256_dpbusd_avx_epi32(sum.hi, w.hi, x)};
}
MOESAIC_INLINE Vec16 ToFloats(Ints16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

// Twice a tile's sums and two registers of weights in 16 registers, with a Vec16 in two.
constexpr int kQuantTileRows = 3;
constexpr int QuantTilePanels(int rows) { return rows == 1 ? 2 : 1; }

}  // namespace
}  // namespace moesaic
