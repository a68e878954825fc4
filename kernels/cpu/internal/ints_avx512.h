// Sums of products of bytes in zmm registers, by VPMADDUBSW. Included after vec_avx512.h.
#pragma once

#include "kernels/cpu/internal/ints_zmm.h"

namespace moesaic {
namespace {

// As with AVX2 the instruction is given the magnitudes of the signed weights, and the activations
// with the weights' signs, so that no pair of products saturates. VPSIGNB has no zmm form: a mask
// says where to negate.
struct WeightBytes {
  __m512i magnitudes;
  __mmask64 negative;
};

MOESAIC_INLINE Ints16 StartOfGroup(int32_t) { return _mm512_setzero_si512(); }
MOESAIC_INLINE WeightBytes Signed(__m512i bytes) {
  const __m512i weights = _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80)));
  return {_mm512_abs_epi8(weights), _mm512_movepi8_mask(weights)};
}
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) { return Signed(_mm512_loadu_si512(line)); }
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line, const HalfScale& scale) {
  return Signed(LowBytes(line, scale));
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line, const HalfScale& scale) {
  return Signed(HighBytes(line, scale));
}
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  const __m512i turned = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
  const __m512i pairs = _mm512_maddubs_epi16(w.magnitudes, turned);
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

MOESAIC_INLINE WeightBytes SmallBytes(const std::byte* line) {
  return {_mm512_loadu_si512(line), 0};
}
MOESAIC_INLINE WeightBytes SmallWeights(ByteLine a) { return {a.v, 0}; }
MOESAIC_INLINE WeightBytes WeightsOf(ByteLine a) { return Signed(a.v); }
MOESAIC_INLINE Ints16 StartOfSums(int32_t sum) { return _mm512_set1_epi32(sum); }

// Sums of two products, 16 bits each, of codes below 128.
struct PairSums {
  __m512i v;
};
MOESAIC_INLINE PairSums PairsOf(ByteLine codes, FourBytes x) {
  return {_mm512_maddubs_epi16(codes.v, x)};
}
MOESAIC_INLINE PairSums AddPairs(PairSums a, PairSums b) { return {_mm512_add_epi16(a.v, b.v)}; }
MOESAIC_INLINE Ints16 AddPairSums(Ints16 sum, PairSums a) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a.v, _mm512_set1_epi16(1)));
}
constexpr bool kDotOfFour = false;

struct Halves {
  static constexpr int64_t kMostRows = 0;
};

constexpr int64_t kGgufMostRows = 16;
constexpr int kGgufTurnRows = 4;
constexpr int kGgufTileRows = 6;
constexpr int GgufTilePanels(int rows) { return rows <= 3 ? 4 : 2; }
constexpr int kQuantTileRows = 6;
constexpr int QuantTilePanels(int rows) { return rows <= 3 ? 4 : 2; }
constexpr int kInt4TileRows = kQuantTileRows;
constexpr bool QuantSumsWait(int, int) { return false; }

}  // namespace
}  // namespace moesaic
