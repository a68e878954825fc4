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

// int4's halves are multiplied as they are: 8 pairs of products of one output fit 16 bits, a
// multiplier comes in with the instruction that adds pairs, and what a half stands above its weight
// is the multiplier's times the sum of the activations.
struct Halves {
  static constexpr bool kDirect = true;
  using Sum = __m256i;
  using Pairs = PairSums;
  // Of 32 activations, in the lower half of each 32 bits.
  MOESAIC_INLINE static Sum SumOf(const int8_t* x) {
    const __m256i pairs = _mm256_maddubs_epi16(
        _mm256_set1_epi8(1), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm256_and_si256(_mm256_broadcastd_epi32(sum), _mm256_set1_epi32(0xffff));
  }
  MOESAIC_INLINE static __m256i Lowered(__m256i zeros) {
    return _mm256_sub_epi32(_mm256_and_si256(zeros, _mm256_set1_epi32(255)),
                            _mm256_set1_epi32(128));
  }
  // With what halves of 0 stand for, as 32-bit numbers.
  MOESAIC_INLINE static HalfScale ScaleOf(const Multipliers& group, int64_t subgroup) {
    HalfScale of = ScaleOfHalves(group, subgroup);
    of.lo.zeros = Lowered(of.lo.zeros);
    of.hi.zeros = Lowered(of.hi.zeros);
    return of;
  }
  MOESAIC_INLINE static ByteLine Low(const std::byte* line) { return Bits<0, 15>(LoadLine(line)); }
  MOESAIC_INLINE static ByteLine High(const std::byte* line) { return Bits<4, 15>(LoadLine(line)); }
  MOESAIC_INLINE static Pairs Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  MOESAIC_INLINE static Pairs Add(Pairs sum, ByteLine halves, FourBytes x) {
    return AddPairs(sum, PairsOf(halves, x));
  }
  MOESAIC_INLINE static __m256i Scaled(__m256i pairs, const Factors16& scale, Sum x) {
    return _mm256_add_epi32(_mm256_madd_epi16(pairs, scale.factors),
                            _mm256_madd_epi16(x, scale.zeros));
  }
  MOESAIC_INLINE static Ints16 Add(Ints16 sum, Pairs pairs, const HalfScale& scale, Sum x) {
    return {_mm256_add_epi32(sum.lo, Scaled(pairs.lo, scale.lo, x)),
            _mm256_add_epi32(sum.hi, Scaled(pairs.hi, scale.hi, x))};
  }
};

constexpr int64_t kGgufMostRows = std::numeric_limits<int64_t>::max();
constexpr int kGgufTurnRows = 2;
constexpr int kGgufTileRows = 2;
constexpr int GgufTilePanels(int rows) { return rows == 1 ? 2 : 1; }
constexpr int kQuantTileRows = 2;
constexpr int QuantTilePanels(int rows) { return rows == 1 ? 2 : 1; }

}  // namespace
}  // namespace moesaic
