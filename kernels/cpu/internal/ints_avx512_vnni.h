// Sums of products of bytes in zmm registers, by VPDPBUSD. Included after vec_avx512.h.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

using Ints16 = __m512i;
using WeightBytes = __m512i;
using FourBytes = __m512i;

MOESAIC_INLINE Ints16 StartOfGroup(int32_t correction) { return _mm512_set1_epi32(correction); }
MOESAIC_INLINE FourBytes LoadFour(const int8_t* x) { return _mm512_set1_epi32(LoadAs<int32_t>(x)); }
MOESAIC_INLINE __m512i UpperHalves(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(0xf0)));
}
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) { return _mm512_loadu_si512(line); }
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line) {
  return UpperHalves(_mm512_slli_epi32(_mm512_loadu_si512(line), 4));
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line) {
  return UpperHalves(_mm512_loadu_si512(line));
}
MOESAIC_INLINE void WidenLine(const std::byte* line, std::byte* out) {
  _mm512_store_si512(out, LowHalves(line));
  _mm512_store_si512(out + kLineBytes, HighHalves(line));
}
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}
MOESAIC_INLINE Vec16 ToFloats(Ints16 a) { return {_mm512_cvtepi32_ps(a)}; }
MOESAIC_INLINE Ints16 LoadDots(const int32_t* dots) { return _mm512_load_si512(dots); }
MOESAIC_INLINE Ints16 AddToAll(Ints16 a, int32_t b) {
  return _mm512_add_epi32(a, _mm512_set1_epi32(b));
}

constexpr int kQuantTileRows = 6;
constexpr int QuantTilePanels(int rows) { return rows <= 3 ? 4 : 2; }

}  // namespace
}  // namespace moesaic
