// Sums of products of bytes in ymm registers, by VPMADDUBSW. Included after vec_avx2.h.
#pragma once

#include <limits>

#include "kernels/cpu/internal/ints_ymm.h"

namespace moesaic {
namespace {

// Weights are signed here: VPMADDUBSW saturates a pair of products, and 255 * 127 * 2 is too much
// for it: it is given the magnitudes of the signed weights, and the activations with the weights'
// signs.
MOESAIC_INLINE Ints16 StartOfGroup(int32_t) {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
MOESAIC_INLINE __m256i Signed(__m256i bytes) {
  return _mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80)));
}
MOESAIC_INLINE WeightBytes Signed(const WeightBytes& w) { return {Signed(w.lo), Signed(w.hi)}; }
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) {
  return {Signed(LoadInts(line)), Signed(LoadInts(line + 32))};
}
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line, const HalfScale& scale) {
  return Signed(LowBytes(line, scale));
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line, const HalfScale& scale) {
  return Signed(HighBytes(line, scale));
}
MOESAIC_INLINE __m256i DotAdd8(__m256i sum, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  return {DotAdd8(sum.lo, w.lo, x), DotAdd8(sum.hi, w.hi, x)};
}

MOESAIC_INLINE WeightBytes SmallBytes(const std::byte* line) {
  return {LoadInts(line), LoadInts(line + 32)};
}
MOESAIC_INLINE WeightBytes SmallWeights(ByteLine a) { return {a.lo, a.hi}; }
MOESAIC_INLINE WeightBytes WeightsOf(ByteLine a) { return Signed(SmallWeights(a)); }
MOESAIC_INLINE Ints16 StartOfSums(int32_t sum) {
  return {_mm256_set1_epi32(sum), _mm256_set1_epi32(sum)};
}

// Sums of two products, 16 bits each, of codes below 128.
struct PairSums {
  __m256i lo;
  __m256i hi;
};
MOESAIC_INLINE PairSums PairsOf(ByteLine codes, FourBytes x) {
  return {_mm256_maddubs_epi16(codes.lo, x), _mm256_maddubs_epi16(codes.hi, x)};
}
MOESAIC_INLINE PairSums AddPairs(PairSums a, PairSums b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
MOESAIC_INLINE Ints16 AddPairSums(Ints16 sum, PairSums a) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, ones)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, ones))};
}
constexpr bool kDotOfFour = false;

// int4's halves are multiplied as they are: 8 pairs of products of one output fit 16 bits.
struct Halves {
  static constexpr int64_t kMostRows = std::numeric_limits<int64_t>::max();
  using Products = PairSums;
  MOESAIC_INLINE static HalfSums SumsOf(const int8_t* x) { return SumsOfSubgroups(x); }
  MOESAIC_INLINE static Ints16 StartOfGroup(const Multipliers& group, const HalfSums& sums) {
    return {OffsetOf(group.lo, sums), OffsetOf(group.hi, sums)};
  }
  MOESAIC_INLINE static HalfFactors FactorsOf(const Multipliers& group, int64_t subgroup) {
    const __m256i words = _mm256_add_epi8(
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8,
                                                  -128, 12, -128, 12, -128)),
        _mm256_set1_epi32(static_cast<int>(subgroup) * 0x00010001));
    return {_mm256_shuffle_epi8(group.lo.factors, words),
            _mm256_shuffle_epi8(group.hi.factors, words)};
  }
  MOESAIC_INLINE static ByteLine Low(const std::byte* line) { return Bits<0, 15>(LoadLine(line)); }
  MOESAIC_INLINE static ByteLine High(const std::byte* line) { return Bits<4, 15>(LoadLine(line)); }
  MOESAIC_INLINE static Products Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  MOESAIC_INLINE static Products AddLow(Products sum, ByteLine halves, FourBytes x) {
    return AddPairs(sum, PairsOf(halves, x));
  }
  MOESAIC_INLINE static Products AddHigh(Products sum, ByteLine halves, FourBytes x) {
    return AddLow(sum, halves, x);
  }
  MOESAIC_INLINE static Ints16 Add(Ints16 sum, Products pairs, const HalfFactors& factors) {
    return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(pairs.lo, factors.lo)),
            _mm256_add_epi32(sum.hi, _mm256_madd_epi16(pairs.hi, factors.hi))};
  }
};

constexpr int64_t kGgufMostRows = std::numeric_limits<int64_t>::max();
constexpr int kGgufTurnRows = 2;
constexpr int kGgufTileRows = 2;
constexpr int GgufTilePanels(int rows) { return rows == 1 ? 2 : 1; }
// Eight sums, the weights of eight outputs, their magnitudes and what is made of a row's
// activations in 16 registers.
constexpr int kQuantTileRows = 4;
constexpr int kInt4TileRows = 4;
constexpr int QuantTilePanels(int rows) { return rows == 1 ? 2 : 1; }
constexpr bool QuantSumsWait(int rows, int panels) { return rows * panels > 2; }

}  // namespace
}  // namespace moesaic
