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

// One or two rows multiply int4's halves as they are, high ones times 16: sums of 16 products fit
// 16 bits then, so that the multiplier comes in with VPDPWSSD.
struct Halves {
  static constexpr int64_t kMostRows = 2;
  struct Products {
    Ints16 low;
    Ints16 high;  // times 16
  };
  MOESAIC_INLINE static HalfSums SumsOf(const int8_t* x) { return SumsOfSubgroups(x); }
  MOESAIC_INLINE static Ints16 StartOfGroup(const Multipliers& group, const HalfSums& sums) {
    return {OffsetOf(group.lo, sums), OffsetOf(group.hi, sums)};
  }
  // In the lower 16 of each 32 bits.
  MOESAIC_INLINE static HalfFactors FactorsOf(const Multipliers& group, int64_t subgroup) {
    const __m256i words = _mm256_add_epi8(
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, -128, -128, 4, -128, -128, -128, 8, -128,
                                                  -128, -128, 12, -128, -128, -128)),
        _mm256_set1_epi32(static_cast<int>(subgroup)));
    return {_mm256_shuffle_epi8(group.lo.factors, words),
            _mm256_shuffle_epi8(group.hi.factors, words)};
  }
  MOESAIC_INLINE static ByteLine Low(const std::byte* line) { return And(LoadLine(line), 15); }
  MOESAIC_INLINE static ByteLine High(const std::byte* line) { return And(LoadLine(line), 0xf0); }
  MOESAIC_INLINE static Products Zero() { return {StartOfSums(0), StartOfSums(0)}; }
  MOESAIC_INLINE static Products AddLow(Products sum, ByteLine halves, FourBytes x) {
    return {DotAdd(sum.low, WeightsOf(halves), x), sum.high};
  }
  MOESAIC_INLINE static Products AddHigh(Products sum, ByteLine halves, FourBytes x) {
    return {sum.low, DotAdd(sum.high, WeightsOf(halves), x)};
  }
  MOESAIC_INLINE static __m256i Add8(__m256i sum, __m256i low, __m256i high, __m256i factors) {
    sum = _mm256_dpwssd_avx_epi32(sum, low, factors);
    return _mm256_dpwssd_avx_epi32(sum, _mm256_srai_epi32(high, 4), factors);
  }
  MOESAIC_INLINE static Ints16 Add(Ints16 sum, const Products& products,
                                   const HalfFactors& factors) {
    return {Add8(sum.lo, products.low.lo, products.high.lo, factors.lo),
            Add8(sum.hi, products.low.hi, products.high.hi, factors.hi)};
  }
};

constexpr int64_t kGgufMostRows = 8;
constexpr int kGgufTurnRows = 2;
constexpr int kGgufTileRows = 2;
constexpr int GgufTilePanels(int rows) { return rows == 1 ? 2 : 1; }
// A sum waits five cycles for itself while two products begin in each: twelve sums, the weights of
// a panel and the activations of a row are in 15 of 16 registers.
constexpr int kQuantTileRows = 6;
constexpr int kInt4TileRows = 3;
constexpr int QuantTilePanels(int rows) { return rows <= 2 ? 2 : 1; }
constexpr bool QuantSumsWait(int rows, int panels) { return rows * panels > 3; }

}  // namespace
}  // namespace moesaic
