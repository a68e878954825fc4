// Vec16 in two ymm registers.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct Vec16 {
  __m256 lo;
  __m256 hi;
};

MOESAIC_INLINE Vec16 Set(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
MOESAIC_INLINE Vec16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
MOESAIC_INLINE Vec16 Load(const void* p) {
  const auto* f = static_cast<const float*>(p);
  return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
}
MOESAIC_INLINE void Store(void* p, Vec16 a) {
  auto* f = static_cast<float*>(p);
  _mm256_storeu_ps(f, a.lo);
  _mm256_storeu_ps(f + 8, a.hi);
}
MOESAIC_INLINE void StoreStream(void* p, Vec16 a) {
  auto* f = static_cast<float*>(p);
  _mm256_stream_ps(f, a.lo);
  _mm256_stream_ps(f + 8, a.hi);
}
MOESAIC_INLINE void EndStreams() { _mm_sfence(); }
// All ones in lanes [first, first + 8) that are below n.
MOESAIC_INLINE __m256i LanesBelow(int64_t n, int first) {
  const __m256i index =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), index);
}
MOESAIC_INLINE Vec16 LoadFirst(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, LanesBelow(n, 0)), _mm256_maskload_ps(p + 8, LanesBelow(n, 8))};
}
MOESAIC_INLINE void StoreFirst(float* p, int64_t n, Vec16 a) {
  _mm256_maskstore_ps(p, LanesBelow(n, 0), a.lo);
  _mm256_maskstore_ps(p + 8, LanesBelow(n, 8), a.hi);
}
MOESAIC_INLINE Vec16 KeepRange(Vec16 a, int64_t begin, int64_t end, Vec16 other) {
  const __m256i lo = _mm256_andnot_si256(LanesBelow(begin, 0), LanesBelow(end, 0));
  const __m256i hi = _mm256_andnot_si256(LanesBelow(begin, 8), LanesBelow(end, 8));
  return {_mm256_blendv_ps(other.lo, a.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(other.hi, a.hi, _mm256_castsi256_ps(hi))};
}

MOESAIC_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
MOESAIC_INLINE Vec16 Fms(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
MOESAIC_INLINE Vec16 Add(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
MOESAIC_INLINE Vec16 Sub(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
MOESAIC_INLINE Vec16 Mul(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
MOESAIC_INLINE Vec16 Div(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
MOESAIC_INLINE Vec16 Max(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
MOESAIC_INLINE Vec16 Min(Vec16 a, Vec16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
MOESAIC_INLINE __m256 MaxMagnitudes8(__m256 a, __m256 b) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_max_epi32(magnitude, _mm256_castps_si256(b)));
}
MOESAIC_INLINE Vec16 MaxMagnitudes(Vec16 a, Vec16 b) {
  return {MaxMagnitudes8(a.lo, b.lo), MaxMagnitudes8(a.hi, b.hi)};
}
MOESAIC_INLINE float MaxMagnitude(Vec16 a, Vec16 b) {
  const Vec16 both = MaxMagnitudes(a, MaxMagnitudes(b, Zero()));
  const __m256i max8 = _mm256_castps_si256(MaxMagnitudes8(both.lo, both.hi));
  __m128i max = _mm_max_epi32(_mm256_castsi256_si128(max8), _mm256_extracti128_si256(max8, 1));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4e));
  max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(max));
}
MOESAIC_INLINE Vec16 SelectLess(Vec16 a, Vec16 b, Vec16 if_true, Vec16 if_false) {
  return {_mm256_blendv_ps(if_false.lo, if_true.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(if_false.hi, if_true.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
MOESAIC_INLINE Vec16 SelectNan(Vec16 a, Vec16 if_nan, Vec16 otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, if_nan.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
          _mm256_blendv_ps(otherwise.hi, if_nan.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
template <int kShift>
MOESAIC_INLINE __m256 AddShifted8(__m256 a, __m256 t) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(t), kShift)));
}
template <int kShift>
MOESAIC_INLINE Vec16 AddShifted(Vec16 a, Vec16 t) {
  return {AddShifted8<kShift>(a.lo, t.lo), AddShifted8<kShift>(a.hi, t.hi)};
}

MOESAIC_INLINE __m256i LoadInts(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
MOESAIC_INLINE Vec16 LoadEven(const std::byte* line) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(LoadInts(line), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(LoadInts(line + 32), 16))};
}
MOESAIC_INLINE Vec16 LoadOdd(const std::byte* line) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(LoadInts(line), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(LoadInts(line + 32), mask))};
}
MOESAIC_INLINE void StorePairs(std::byte* line, Vec16 even, Vec16 odd) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const auto join = [&](__m256 low, __m256 high) {
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(low), 16),
                           _mm256_and_si256(_mm256_castps_si256(high), mask));
  };
  auto* halves = reinterpret_cast<__m256i*>(line);
  _mm256_storeu_si256(halves, join(even.lo, odd.lo));
  _mm256_storeu_si256(halves + 1, join(even.hi, odd.hi));
}
MOESAIC_INLINE __m256 LoadBf16x8(const void* p) {
  const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
MOESAIC_INLINE Vec16 LoadBf16(const void* p) {
  return {LoadBf16x8(p), LoadBf16x8(static_cast<const std::byte*>(p) + 16)};
}
MOESAIC_INLINE __m256i RoundToBf16x8(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}
MOESAIC_INLINE void StoreBf16(void* p, Vec16 a) {
  const __m256i packed = _mm256_packus_epi32(RoundToBf16x8(a.lo), RoundToBf16x8(a.hi));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
MOESAIC_INLINE Vec16 LoadF16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
MOESAIC_INLINE void StoreF16(void* p, Vec16 a) {
  auto* halves = static_cast<__m128i*>(p);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

MOESAIC_INLINE Vec16 LoadI16(const int16_t* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(halves))),
          _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(halves + 1)))};
}
MOESAIC_INLINE void StoreI16(int16_t* p, Vec16 a) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
MOESAIC_INLINE Vec16 LoadI8(const void* p) {
  const __m128i values = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(values, 8)))};
}
MOESAIC_INLINE int32_t StoreI8(int8_t* p, Vec16 a, Vec16 b) {
  const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(b.lo), _mm256_cvtps_epi32(b.hi));
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  // Sums of bytes are there for unsigned ones.
  const __m256i sums8 = _mm256_sad_epu8(
      _mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80))), _mm256_setzero_si256());
  const __m128i sums =
      _mm_add_epi32(_mm256_castsi256_si128(sums8), _mm256_extracti128_si256(sums8, 1));
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 32 * 128;
}
MOESAIC_INLINE __m256 Exponent8(__m256 a) {
  const __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
}
MOESAIC_INLINE Vec16 Exponent(Vec16 a) { return {Exponent8(a.lo), Exponent8(a.hi)}; }

// One 8 x 8 quarter of Transpose16; dst lines are 64 bytes apart.
MOESAIC_INLINE void Transpose8(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  __m256i a[8];
  __m256i b[8];
  MOESAIC_UNROLL
  for (int i = 0; i < 8; ++i) a[i] = LoadInts(src + i * stride_bytes);
  MOESAIC_UNROLL
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  // a[4q + c]: per 128-bit lane l, column 4l + c of rows 4q to 4q + 3.
  MOESAIC_UNROLL
  for (int i = 0; i < 2; ++i) {
    a[4 * i + 0] = _mm256_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 1] = _mm256_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 2] = _mm256_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
    a[4 * i + 3] = _mm256_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
  }
  MOESAIC_UNROLL
  for (int c = 0; c < 4; ++c) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + c * 64),
                        _mm256_permute2x128_si256(a[c], a[4 + c], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + (4 + c) * 64),
                        _mm256_permute2x128_si256(a[c], a[4 + c], 0x31));
  }
}
MOESAIC_INLINE void Transpose16(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  Transpose8(src, stride_bytes, dst);
  Transpose8(src + 32, stride_bytes, dst + 8 * 64);
  Transpose8(src + 8 * stride_bytes, stride_bytes, dst + 32);
  Transpose8(src + 8 * stride_bytes + 32, stride_bytes, dst + 8 * 64 + 32);
}
// Quarters of 32 bytes a line: half a line at a time is no stream.
MOESAIC_INLINE void TransposeStream16(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  Transpose16(src, stride_bytes, dst);
}

MOESAIC_INLINE float SumLanes(Vec16 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
MOESAIC_INLINE float MaxLanes(Vec16 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// At most 12 of 16 registers are accumulators, and a Vec16 takes two.
// A line of mxfp4 or w4a16 weights: eight codes of 4 bits for each lane.
struct CodeLine {
  __m256i lo;
  __m256i hi;
};
MOESAIC_INLINE CodeLine LoadCodes(const std::byte* line) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 32))};
}
template <int kCode>
MOESAIC_INLINE __m256 E2M1Of8(__m256i codes) {
  const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i signs = _mm256_and_si256(_mm256_slli_epi32(codes, 28 - 4 * kCode),
                                         _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  // Bits above the three are not looked at.
  return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(codes, 4 * kCode)),
                      _mm256_castsi256_ps(signs));
}
// The values of code kCode of each lane, without the exponent.
template <int kCode>
MOESAIC_INLINE Vec16 E2M1(CodeLine codes) {
  return {E2M1Of8<kCode>(codes.lo), E2M1Of8<kCode>(codes.hi)};
}
// The values of code kCode of each lane as signed numbers, -8 to 7.
template <int kCode>
MOESAIC_INLINE Vec16 SignedNibbles(CodeLine codes) {
  const auto of_8 = [](__m256i eight) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(eight, 28 - 4 * kCode), 28));
  };
  return {of_8(codes.lo), of_8(codes.hi)};
}
// 2^(byte - 127) of 16 bytes, 255 being infinite; 2^-127 is a denormal.
MOESAIC_INLINE Vec16 E8M0(const std::byte* bytes) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const auto powers = [](__m128i eight) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000)));
  };
  return {powers(all), powers(_mm_srli_si128(all, 8))};
}

// 16 pairs of bf16, as a line of bf16 weights has them.
struct PairLine {
  __m256i lo;
  __m256i hi;
};
MOESAIC_INLINE Vec16 EvenOf(PairLine a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
MOESAIC_INLINE Vec16 OddOf(PairLine a) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(a.lo, mask)),
          _mm256_castsi256_ps(_mm256_and_si256(a.hi, mask))};
}
MOESAIC_INLINE void StoreLine(std::byte* line, PairLine a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(line), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + 32), a.hi);
}

// The subnormal ones of 16 fp8 values, and zeros, are whole numbers of 2^-9: `codes` has sign and
// magnitude in the places of a bf16's, `values` what they would be with an exponent of their own.
MOESAIC_INLINE __m256i WithSubnormals(__m256i codes, __m256i values) {
  const __m256i numbers = _mm256_broadcastsi128_si256(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __m256i small = _mm256_cmpeq_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x0780)),
                                           _mm256_setzero_si256());
  const __m256i number = _mm256_srli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x70)), 4);
  const __m256i places = _mm256_add_epi16(_mm256_mullo_epi16(number, _mm256_set1_epi16(0x0202)),
                                          _mm256_set1_epi16(0x0100));
  const __m256i signs = _mm256_and_si256(codes, _mm256_set1_epi16(-0x8000));
  return _mm256_blendv_epi8(values, _mm256_or_si256(_mm256_shuffle_epi8(numbers, places), signs),
                            small);
}
// A line of fp8 weights: the values of its low and of its high bytes.
MOESAIC_INLINE void DecodeFp8(const std::byte* line, PairLine& low, PairLine& high) {
  const __m256i kept = _mm256_set1_epi16(static_cast<int16_t>(0x87f0));
  const __m256i bias = _mm256_set1_epi16(0x3c00);
  const __m256i exponents = _mm256_set1_epi8(0x78);
  const __m256i first = LoadInts(line);
  const __m256i second = LoadInts(line + 32);
  const auto low_codes = [&](__m256i codes) {
    return _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 4), kept);
  };
  const auto high_codes = [&](__m256i codes) {
    return _mm256_and_si256(_mm256_srai_epi16(codes, 4), kept);
  };
  low = {_mm256_add_epi16(low_codes(first), bias), _mm256_add_epi16(low_codes(second), bias)};
  high = {_mm256_add_epi16(high_codes(first), bias), _mm256_add_epi16(high_codes(second), bias)};
  const __m256i least =
      _mm256_min_epu8(_mm256_and_si256(first, exponents), _mm256_and_si256(second, exponents));
  // Few lines have one.
  if (__builtin_expect(_mm256_movemask_epi8(_mm256_cmpeq_epi8(least, _mm256_setzero_si256())) != 0,
                       0)) {
    low = {WithSubnormals(low_codes(first), low.lo), WithSubnormals(low_codes(second), low.hi)};
    high = {WithSubnormals(high_codes(first), high.lo),
            WithSubnormals(high_codes(second), high.hi)};
  }
}
constexpr int kFp8DirectRows = 2;
constexpr int Fp8TilePanels(int rows) { return rows == 1 ? 2 : 1; }

constexpr int kFourBitTileRows = 4;
constexpr int FourBitTilePanels(int rows) { return rows == 1 ? 2 : 1; }

// Panels of state that the delta rule takes at once: as many sums as hide a multiply-add's latency.
constexpr int kDeltaPanels = 2;

constexpr int kMaxTileRows = 6;
constexpr int TilePanels(int rows) { return rows == 1 ? 4 : rows == 2 ? 3 : rows == 3 ? 2 : 1; }
constexpr int kMaxQueries = 6;
constexpr int kMaxExactQueries = 6;
constexpr int ScoreBlocksFor(int queries) { return queries == 1 ? 4 : queries <= 3 ? 2 : 1; }
constexpr int ValueVectorsFor(int queries) { return queries == 1 ? 4 : queries <= 3 ? 2 : 1; }

}  // namespace
}  // namespace moesaic
