// Sums of products of bytes in ymm registers, by VPDPBUSD. Included after vec_avx2.h.
#pragma once

#include "kernels/cpu/internal/ints_ymm.h"

namespace moesaic {
namespace {

MOESAIC_INLINE Ints16 StartOfGroup(int32_t correction) {
  return {_mm256_set1_epi32(correction), _mm256_set1_epi32(correction)};
}
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) {
  return {LoadInts(line), LoadInts(line + 32)};
}
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line, const HalfScale& scale) {
  return LowBytes(line, scale);
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line, const HalfScale& scale) {
  return HighBytes(line, scale);
}
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  return {_mm256_dpbusd_avx_epi32(sum.lo, w.lo, x), _mm256_dpbusd_avx_epi32(sum.hi, w.hi, x)};
}

MOESAIC_INLINE WeightBytes SmallBytes(const std::byte* line) { return Bytes(line); }
MOESAIC_INLINE WeightBytes WeightsOf(ByteLine a) { return {a.lo, a.hi}; }
MOESAIC_INLINE WeightBytes SmallWeights(ByteLine a) { return WeightsOf(a); }
MOESAIC_INLINE Ints16 StartOfSums(int32_t sum) { return StartOfGroup(sum); }
constexpr bool kDotOfFour = true;

struct Halves {
  static constexpr bool kDirect = false;
};

constexpr int64_t kGgufMostRows = 8;
constexpr int kGgufTurnRows = 2;
constexpr int kGgufTileRows = 2;
constexpr int GgufTilePanels(int rows) { return rows == 1 ? 2 : 1; }
// Twice a tile's sums and two registers of weights in 16 registers, with a Vec16 in two.
constexpr int kQuantTileRows = 3;
constexpr int QuantTilePanels(int rows) { return rows == 1 ? 2 : 1; }

}  // namespace
}  // namespace moesaic
