// Coded bf16 weights become lines of bf16, in plain C++. Included after vec_scalar.h.
#pragma once

#include "kernels/cpu/internal/coded_layout.h"

namespace moesaic {
namespace {

// Lines 2 kHalf and 2 kHalf + 1 of the step at `step`, exceptions aside.
template <int kHalf>
MOESAIC_INLINE void DecodeHalf(const std::byte* step, const std::byte* panel, PairLine& first,
                               PairLine& second) {
  const auto word = [&](int64_t line, int64_t i) {
    const int64_t at = CodedByte(line, i);
    const auto rest = LoadAs<uint8_t>(step + kHalf * kLineBytes + at);
    const auto both = LoadAs<uint8_t>(step + kCodedNumbersOffset + at);
    const int number = kHalf == 0 ? both & 15 : both >> 4;
    const uint32_t upper = LoadAs<uint8_t>(panel + number);
    const uint32_t lowest = LoadAs<uint8_t>(panel + kCodedLowOffset + number);
    return (rest & 0x80u) << 8 | upper << 8 | lowest | (rest & 0x7fu);
  };
  for (int i = 0; i < 16; ++i) {
    first.v[i] = word(0, 2 * i) | word(0, 2 * i + 1) << 16;
    second.v[i] = word(1, 2 * i) | word(1, 2 * i + 1) << 16;
  }
}

// The other way: two lines of bf16 as a line of signs and mantissas and one of the exponents'
// numbers. Returns whether one of these is kCodedExponents.
MOESAIC_INLINE bool CodeHalf(const std::byte* lines, const uint8_t (&exponents)[kCodedExponents],
                             std::byte* rest, std::byte* numbers) {
  bool any = false;
  for (int64_t line = 0; line < 2; ++line) {
    for (int64_t i = 0; i < 2 * kLanes; ++i) {
      const auto word = LoadAs<uint16_t>(lines + line * kLineBytes + i * 2);
      const int64_t at = CodedByte(line, i);
      int number = 0;
      while (number < kCodedExponents && exponents[number] != ExponentOf(word)) ++number;
      any = any || number == kCodedExponents;
      StoreAs(rest + at, static_cast<uint8_t>((word >> 8 & 0x80) | (word & 0x7f)));
      StoreAs(numbers + at, static_cast<uint8_t>(number));
    }
  }
  return any;
}

constexpr int kCodedDirectRows = 2;
constexpr int CodedTilePanels(int) { return 1; }

}  // namespace
}  // namespace moesaic
