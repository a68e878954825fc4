// What sums of products of bytes in ymm registers have in common, whichever instruction multiplies.
// Included after vec_avx2.h.
#pragma once

#include "kernels/cpu/internal/lines_avx2.h"

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

// Of outputs 0 to 7 or 8 to 15: bytes of all subgroups, [8][4]; of one subgroup 16-bit factors.
struct Factors {
  __m256i factors;
  __m256i zeros;
};
struct Multipliers {
  Factors lo;
  Factors hi;
};
struct Factors16 {
  __m256i factors;
  __m256i high_factors;  // times 2^12
  __m256i zeros;
};
struct HalfScale {
  Factors16 lo;
  Factors16 hi;
};
MOESAIC_INLINE Factors FactorsOf(__m256i bytes) {
  const __m256i factors = _mm256_and_si256(bytes, _mm256_set1_epi8(127));
  const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes);
  // At most 15: 8 of them stay in their byte.
  const __m256i zeros =
      _mm256_sub_epi8(_mm256_set1_epi8(static_cast<char>(128)), _mm256_slli_epi16(factors, 3));
  return {factors, _mm256_add_epi8(zeros, _mm256_and_si256(factors, negative))};
}
MOESAIC_INLINE Factors16 FactorsOfSubgroup(const Factors& group, int subgroup) {
  const __m256i words = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -128, 0, -128, 4, -128, 4, -128, 8, -128, 8, -128, 12, -128, 12, -128));
  const __m256i bytes = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  const __m256i factors = _mm256_shuffle_epi8(
      group.factors, _mm256_add_epi8(words, _mm256_set1_epi32(subgroup * 0x00010001)));
  return {factors, _mm256_slli_epi16(factors, 12),
          _mm256_shuffle_epi8(group.zeros,
                              _mm256_add_epi8(bytes, _mm256_set1_epi32(subgroup * 0x01010101)))};
}
MOESAIC_INLINE Multipliers LoadMultipliers(const std::byte* line) {
  return {FactorsOf(LoadInts(line)), FactorsOf(LoadInts(line + 32))};
}
MOESAIC_INLINE HalfScale ScaleOfHalves(const Multipliers& group, int64_t subgroup) {
  return {FactorsOfSubgroup(group.lo, static_cast<int>(subgroup)),
          FactorsOfSubgroup(group.hi, static_cast<int>(subgroup))};
}
// No product of a half and a factor needs more than its byte.
MOESAIC_INLINE __m256i LowBytes8(const std::byte* line, const Factors16& scale) {
  const __m256i halves = _mm256_and_si256(LoadInts(line), _mm256_set1_epi8(15));
  return _mm256_add_epi8(_mm256_mullo_epi16(halves, scale.factors), scale.zeros);
}
// The upper 16 bits of a product with halves times 2^4.
MOESAIC_INLINE __m256i HighBytes8(const std::byte* line, const Factors16& scale) {
  const __m256i halves =
      _mm256_and_si256(LoadInts(line), _mm256_set1_epi8(static_cast<char>(0xf0)));
  return _mm256_add_epi8(_mm256_mulhi_epu16(halves, scale.high_factors), scale.zeros);
}
MOESAIC_INLINE WeightBytes LowBytes(const std::byte* line, const HalfScale& scale) {
  return {LowBytes8(line, scale.lo), LowBytes8(line + 32, scale.hi)};
}
MOESAIC_INLINE WeightBytes HighBytes(const std::byte* line, const HalfScale& scale) {
  return {HighBytes8(line, scale.lo), HighBytes8(line + 32, scale.hi)};
}
MOESAIC_INLINE void StoreBytes(std::byte* p, __m256i bytes) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(p), bytes);
}
MOESAIC_INLINE void WidenLine(const std::byte* line, const HalfScale& scale, std::byte* out) {
  const WeightBytes low = LowBytes(line, scale);
  const WeightBytes high = HighBytes(line, scale);
  StoreBytes(out, low.lo);
  StoreBytes(out + 32, low.hi);
  StoreBytes(out + 64, high.lo);
  StoreBytes(out + 96, high.hi);
}
MOESAIC_INLINE Vec16 ToFloats(Ints16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

// What multiplying int4's halves as they are has in common: an instruction that adds pairs of
// products of 16 bits brings the multiplier of a subgroup in, and what a half stands above its
// weight is the multiplier's times the sum of the subgroup's activations.
struct HalfSums {
  // Of 32 activations in 16 bits, in each 32: of the first and third, second and fourth subgroup.
  __m256i even;
  __m256i odd;
};
MOESAIC_INLINE HalfSums SumsOfSubgroups(const int8_t* x) {
  const auto eighths = [x](int subgroup) MOESAIC_BODY {
    const __m256i pairs = _mm256_maddubs_epi16(
        _mm256_set1_epi8(1), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + subgroup));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  };
  const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(eighths(0), eighths(2)),
                                         _mm256_hadd_epi32(eighths(1), eighths(3)));
  // Of subgroups 0, 2, 1 and 3.
  const __m128i of_all =
      _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  const __m128i words = _mm_packs_epi32(of_all, of_all);
  return {_mm256_broadcastd_epi32(words), _mm256_broadcastd_epi32(_mm_srli_si128(words, 4))};
}
// Of what halves of 0 stand for, times these sums.
MOESAIC_INLINE __m256i OffsetOf(const Factors& group, const HalfSums& sums) {
  const __m256i zeros =
      _mm256_xor_si256(group.zeros, _mm256_set1_epi8(static_cast<char>(0x80)));  // -120 to 0
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(zeros, 8), 8);
  const __m256i odd = _mm256_srai_epi16(zeros, 8);
  return _mm256_add_epi32(_mm256_madd_epi16(even, sums.even), _mm256_madd_epi16(odd, sums.odd));
}
struct HalfFactors {
  __m256i lo;
  __m256i hi;
};

}  // namespace
}  // namespace moesaic
