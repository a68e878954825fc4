// Sums of products of bytes in zmm registers, by VPDPBUSD. Included after vec_avx512.h.
#pragma once

#include "kernels/cpu/internal/ints_zmm.h"

namespace moesaic {
namespace {

using WeightBytes = __m512i;

MOESAIC_INLINE Ints16 StartOfGroup(int32_t correction) { return _mm512_set1_epi32(correction); }
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) { return _mm512_loadu_si512(line); }
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line, const HalfScale& scale) {
  return LowBytes(line, scale);
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line, const HalfScale& scale) {
  return HighBytes(line, scale);
}
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}
MOESAIC_INLINE Ints16 LoadDots(const int32_t* dots) { return _mm512_load_si512(dots); }
MOESAIC_INLINE Ints16 AddToAll(Ints16 a, int32_t b) {
  return _mm512_add_epi32(a, _mm512_set1_epi32(b));
}

MOESAIC_INLINE WeightBytes SmallBytes(const std::byte* line) { return Bytes(line); }

MOESAIC_INLINE WeightBytes WeightsOf(ByteLine a) { return a.v; }
MOESAIC_INLINE WeightBytes SmallWeights(ByteLine a) { return a.v; }
MOESAIC_INLINE Ints16 StartOfSums(int32_t sum) { return _mm512_set1_epi32(sum); }
constexpr bool kDotOfFour = true;

struct Halves {
  static constexpr int64_t kMostRows = 0;
};

// Sums of a group and of 128 inputs are in registers.
constexpr int64_t kGgufMostRows = 16;
constexpr int kGgufTurnRows = 4;
constexpr int kGgufTileRows = 6;
constexpr int GgufTilePanels(int rows) { return rows <= 3 ? 4 : 2; }
// Few sums in flight wait for each other: 4 rows of 4 panels take 0.85 of the time of 4 of 2.
constexpr int kQuantTileRows = 8;
constexpr int QuantTilePanels(int rows) { return rows <= 6 ? 4 : 2; }
constexpr int kInt4TileRows = kQuantTileRows;
constexpr bool QuantSumsWait(int, int) { return false; }

}  // namespace
}  // namespace moesaic
