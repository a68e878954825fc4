// Coded bf16 weights become lines of bf16, in ymm registers. Included after vec_avx2.h.
#pragma once

#include "kernels/cpu/internal/coded_layout.h"

namespace moesaic {
namespace {

// Lines 2 kHalf and 2 kHalf + 1 of the step at `step`, exceptions aside.
template <int kHalf>
MOESAIC_INLINE void DecodeHalf(const std::byte* step, const std::byte* panel, PairLine& first,
                               PairLine& second) {
  const auto table = [&](int64_t offset) {
    return _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + offset)));
  };
  const __m256i upper = table(0);
  const __m256i lowest = table(kCodedLowOffset);
  const __m256i signs = _mm256_set1_epi8(static_cast<char>(0x80));
  const auto decode = [&](int64_t offset, __m256i& of_first, __m256i& of_second) {
    const __m256i rest = LoadInts(step + kHalf * kLineBytes + offset);
    const __m256i both = LoadInts(step + kCodedNumbersOffset + offset);
    const __m256i numbers =
        _mm256_and_si256(kHalf == 0 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    const __m256i high =
        _mm256_or_si256(_mm256_and_si256(signs, rest), _mm256_shuffle_epi8(upper, numbers));
    const __m256i low =
        _mm256_or_si256(_mm256_andnot_si256(signs, rest), _mm256_shuffle_epi8(lowest, numbers));
    of_first = _mm256_unpacklo_epi8(low, high);
    of_second = _mm256_unpackhi_epi8(low, high);
  };
  decode(0, first.lo, second.lo);
  decode(kLineBytes / 2, first.hi, second.hi);
}

// The other way: two lines of bf16 as a line of signs and mantissas and one of the exponents'
// numbers. Returns whether one of these is kCodedExponents.
MOESAIC_INLINE bool CodeHalf(const std::byte* lines, const uint8_t (&exponents)[kCodedExponents],
                             std::byte* rest, std::byte* numbers) {
  const __m256i bytes = _mm256_set1_epi16(255);
  const __m256i signs = _mm256_set1_epi8(static_cast<char>(0x80));
  const auto store = [](std::byte* to, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  };
  int any = 0;
  for (int64_t at = 0; at < kLineBytes; at += kLineBytes / 2) {
    const __m256i first = LoadInts(lines + at);
    const __m256i second = LoadInts(lines + kLineBytes + at);
    const __m256i high =
        _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
    const __m256i low =
        _mm256_packus_epi16(_mm256_and_si256(first, bytes), _mm256_and_si256(second, bytes));
    store(rest + at,
          _mm256_or_si256(_mm256_and_si256(signs, high), _mm256_andnot_si256(signs, low)));
    const __m256i lowest = _mm256_and_si256(_mm256_srli_epi16(low, 7), _mm256_set1_epi8(1));
    const __m256i found = _mm256_or_si256(_mm256_add_epi8(high, high), lowest);
    __m256i number = _mm256_set1_epi8(kCodedExponents);
    for (int i = kCodedExponents - 1; i >= 0; --i) {
      const __m256i exponent = _mm256_set1_epi8(static_cast<char>(exponents[i]));
      number = _mm256_blendv_epi8(number, _mm256_set1_epi8(static_cast<char>(i)),
                                  _mm256_cmpeq_epi8(found, exponent));
    }
    store(numbers + at, number);
    any |= _mm256_movemask_epi8(_mm256_cmpeq_epi8(number, _mm256_set1_epi8(kCodedExponents)));
  }
  return any != 0;
}

constexpr int kCodedDirectRows = 2;
constexpr int CodedTilePanels(int rows) { return rows == 1 ? 2 : 1; }

}  // namespace
}  // namespace moesaic
