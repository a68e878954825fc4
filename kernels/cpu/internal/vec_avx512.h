// Vec16 in one zmm register.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct Vec16 {
  __m512 v;
};

MOESAIC_INLINE __mmask16 FirstLanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

MOESAIC_INLINE Vec16 Set(float a) { return {_mm512_set1_ps(a)}; }
MOESAIC_INLINE Vec16 Zero() { return {_mm512_setzero_ps()}; }
MOESAIC_INLINE Vec16 Load(const void* p) { return {_mm512_loadu_ps(p)}; }
MOESAIC_INLINE void Store(void* p, Vec16 a) { _mm512_storeu_ps(p, a.v); }
// Past the caches; 64-byte aligned. Other threads may read what was stored before EndStreams.
MOESAIC_INLINE void StoreStream(void* p, Vec16 a) { _mm512_stream_ps(static_cast<float*>(p), a.v); }
MOESAIC_INLINE void EndStreams() { _mm_sfence(); }
MOESAIC_INLINE Vec16 LoadFirst(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n), p)};
}
MOESAIC_INLINE void StoreFirst(float* p, int64_t n, Vec16 a) {
  _mm512_mask_storeu_ps(p, FirstLanes(n), a.v);
}
MOESAIC_INLINE Vec16 KeepRange(Vec16 a, int64_t begin, int64_t end, Vec16 other) {
  const __mmask16 keep = static_cast<__mmask16>(FirstLanes(end) & ~FirstLanes(begin));
  return {_mm512_mask_blend_ps(keep, other.v, a.v)};
}

MOESAIC_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
MOESAIC_INLINE Vec16 Fms(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
MOESAIC_INLINE Vec16 Add(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
MOESAIC_INLINE Vec16 Sub(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
MOESAIC_INLINE Vec16 Mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
MOESAIC_INLINE Vec16 Div(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
MOESAIC_INLINE Vec16 Max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
MOESAIC_INLINE Vec16 Min(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }
MOESAIC_INLINE Vec16 MaxMagnitudes(Vec16 a, Vec16 b) {
  const __m512i magnitude =
      _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff));
  return {_mm512_castsi512_ps(_mm512_max_epi32(magnitude, _mm512_castps_si512(b.v)))};
}
MOESAIC_INLINE float MaxMagnitude(Vec16 a, Vec16 b) {
  const Vec16 both = MaxMagnitudes(a, MaxMagnitudes(b, Zero()));
  return FloatOf(static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_castps_si512(both.v))));
}
MOESAIC_INLINE Vec16 SelectLess(Vec16 a, Vec16 b, Vec16 if_true, Vec16 if_false) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), if_false.v, if_true.v)};
}
MOESAIC_INLINE Vec16 SelectNan(Vec16 a, Vec16 if_nan, Vec16 otherwise) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), otherwise.v, if_nan.v)};
}
template <int kShift>
MOESAIC_INLINE Vec16 AddShifted(Vec16 a, Vec16 t) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(
      _mm512_castps_si512(a.v), _mm512_slli_epi32(_mm512_castps_si512(t.v), kShift)))};
}

MOESAIC_INLINE Vec16 LoadEven(const std::byte* line) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(line), 16))};
}
MOESAIC_INLINE Vec16 LoadOdd(const std::byte* line) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(line), mask))};
}
MOESAIC_INLINE void StorePairs(std::byte* line, Vec16 even, Vec16 odd) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
  _mm512_storeu_si512(line,
                      _mm512_or_si512(low, _mm512_and_si512(_mm512_castps_si512(odd.v), mask)));
}
MOESAIC_INLINE Vec16 LoadBf16(const void* p) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
// Not VCVTNEPS2BF16, which takes denormals for zero: all instruction sets round alike.
MOESAIC_INLINE __m256i RoundToBf16(Vec16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
}
MOESAIC_INLINE void StoreBf16(void* p, Vec16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), RoundToBf16(a));
}
MOESAIC_INLINE Vec16 LoadF16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
MOESAIC_INLINE void StoreF16(void* p, Vec16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

MOESAIC_INLINE Vec16 LoadI16(const int16_t* p) {
  const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(values))};
}
MOESAIC_INLINE void StoreI16(int16_t* p, Vec16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
MOESAIC_INLINE Vec16 LoadI8(const void* p) {
  const __m128i values = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(values))};
}
MOESAIC_INLINE int32_t StoreI8(int8_t* p, Vec16 a, Vec16 b) {
  const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b.v)),
                                         _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
  // Sums of bytes are there for unsigned ones.
  const __m256i sums8 = _mm256_sad_epu8(
      _mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80))), _mm256_setzero_si256());
  const __m128i sums =
      _mm_add_epi32(_mm256_castsi256_si128(sums8), _mm256_extracti128_si256(sums8, 1));
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi32(sums, 2) - 32 * 128;
}
MOESAIC_INLINE Vec16 Exponent(Vec16 a) { return {_mm512_getexp_ps(a.v)}; }

template <bool kStream>
MOESAIC_INLINE void TransposeTo(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  __m512i a[16];
  __m512i b[16];
  MOESAIC_UNROLL
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(src + i * stride_bytes);
  MOESAIC_UNROLL
  for (int i = 0; i < 8; ++i) {
    b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  // a[4q + c]: per 128-bit lane l, column 4l + c of rows 4q to 4q + 3.
  MOESAIC_UNROLL
  for (int i = 0; i < 4; ++i) {
    a[4 * i + 0] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
    a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
    a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
  }
  const auto store = [&](int line, __m512i words) {
    if constexpr (kStream) {
      StoreStream(dst + line * kLineBytes, {_mm512_castsi512_ps(words)});
    } else {
      _mm512_storeu_si512(dst + line * kLineBytes, words);
    }
  };
  // Then a 4 x 4 transposition of 128-bit lanes for each c.
  MOESAIC_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i lo01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x44);
    const __m512i hi01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xee);
    const __m512i lo23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x44);
    const __m512i hi23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xee);
    store(c, _mm512_shuffle_i32x4(lo01, lo23, 0x88));
    store((4 + c), _mm512_shuffle_i32x4(lo01, lo23, 0xdd));
    store((8 + c), _mm512_shuffle_i32x4(hi01, hi23, 0x88));
    store((12 + c), _mm512_shuffle_i32x4(hi01, hi23, 0xdd));
  }
}
MOESAIC_INLINE void Transpose16(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  TransposeTo<false>(src, stride_bytes, dst);
}
// The same with StoreStream.
MOESAIC_INLINE void TransposeStream16(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  TransposeTo<true>(src, stride_bytes, dst);
}

MOESAIC_INLINE float SumLanes(Vec16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
MOESAIC_INLINE float MaxLanes(Vec16 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// At most 24 accumulators of 32 registers; few rows take many panels, which hides the latency of a
// multiply-add and keeps several streams of weights in flight.
// A line of mxfp4 or w4a16 weights: eight codes of 4 bits for each lane.
using CodeLine = __m512i;
MOESAIC_INLINE CodeLine LoadCodes(const std::byte* line) { return _mm512_loadu_si512(line); }
// The values of code kCode of each lane, without the exponent.
template <int kCode>
MOESAIC_INLINE Vec16 E2M1(CodeLine codes) {
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                       -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  // Bits above the four are not looked at.
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4 * kCode), values)};
}
// The values of code kCode of each lane as signed numbers, -8 to 7.
template <int kCode>
MOESAIC_INLINE Vec16 SignedNibbles(CodeLine codes) {
  const __m512 values = _mm512_setr_ps(0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, -8.0f, -7.0f,
                                       -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f);
  // Bits above the four are not looked at.
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4 * kCode), values)};
}
// 2^(byte - 127) of 16 bytes, 255 being infinite; 2^-127 is a denormal.
MOESAIC_INLINE Vec16 E8M0(const std::byte* bytes) {
  const __m512i exponents =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return {_mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_slli_epi32(exponents, 23), _mm512_set1_epi32(0x00400000)))};
}

// 16 pairs of bf16, as a line of bf16 weights has them.
using PairLine = __m512i;
MOESAIC_INLINE Vec16 EvenOf(PairLine a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))}; }
MOESAIC_INLINE Vec16 OddOf(PairLine a) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(a, mask))};
}
MOESAIC_INLINE void StoreLine(std::byte* line, PairLine a) { _mm512_storeu_si512(line, a); }

// The subnormal ones of 32 fp8 values, and zeros, are whole numbers of 2^-9: `codes` has sign and
// magnitude in the places of a bf16's, `values` what they would be with an exponent of their own.
MOESAIC_INLINE __m512i WithSubnormals(__m512i codes, __m512i values) {
  const __m512i numbers = _mm512_broadcast_i32x4(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __mmask32 small = _mm512_testn_epi16_mask(codes, _mm512_set1_epi16(0x0780));
  const __m512i number = _mm512_srli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x70)), 4);
  const __m512i places = _mm512_add_epi16(_mm512_mullo_epi16(number, _mm512_set1_epi16(0x0202)),
                                          _mm512_set1_epi16(0x0100));
  const __m512i signs = _mm512_and_si512(codes, _mm512_set1_epi16(-0x8000));
  return _mm512_mask_mov_epi16(values, small,
                               _mm512_or_si512(_mm512_shuffle_epi8(numbers, places), signs));
}
// A line of fp8 weights: the values of its low and of its high bytes.
MOESAIC_INLINE void DecodeFp8(const std::byte* line, PairLine& low, PairLine& high) {
  const __m512i codes = _mm512_loadu_si512(line);
  const __m512i kept = _mm512_set1_epi16(static_cast<int16_t>(0x87f0));
  const __m512i bias = _mm512_set1_epi16(0x3c00);
  const __m512i low_codes =
      _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 4), kept);
  const __m512i high_codes = _mm512_and_si512(_mm512_srai_epi16(codes, 4), kept);
  low = _mm512_add_epi16(low_codes, bias);
  high = _mm512_add_epi16(high_codes, bias);
  // Few lines have one.
  if (__builtin_expect(_mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x78)) != 0, 0)) {
    low = WithSubnormals(low_codes, low);
    high = WithSubnormals(high_codes, high);
  }
}
constexpr int kFp8DirectRows = 4;
constexpr int Fp8TilePanels(int rows) { return rows <= 2 ? 4 : 2; }

constexpr int kFourBitTileRows = 12;
constexpr int FourBitTilePanels(int rows) { return rows <= 2 ? 4 : rows <= 8 ? 2 : 1; }

// Panels of state that the delta rule takes at once: as many sums as hide a multiply-add's latency.
constexpr int kDeltaPanels = 4;

constexpr int kMaxTileRows = 12;
constexpr int TilePanels(int rows) {
  return rows <= 2 ? 8 : rows <= 4 ? 6 : rows <= 6 ? 4 : rows <= 8 ? 3 : 2;
}
constexpr int kMaxQueries = 12;
constexpr int kMaxExactQueries = 8;  // between the two there are no tiles
constexpr int ScoreBlocksFor(int queries) { return queries <= 5 ? 4 : 2; }
constexpr int ValueVectorsFor(int queries) { return queries <= 2 ? 8 : queries <= 6 ? 4 : 2; }

}  // namespace
}  // namespace moesaic
