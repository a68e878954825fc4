// The codes of GGUF's blocks, bytes that weights are multiples of a scale of, from the bodies of
// panels (gguf_layout.h), a line at a time. Included after ByteLine (lines_*.h).
#pragma once

#include "kernels/cpu/internal/gguf_scales.h"

namespace moesaic {
namespace {

constexpr int kGgufZero = 128;

// Where weight 0 is among the codes, and the highest code that there is.
struct GgufCodes {
  int zero;
  int highest;
};
constexpr int kE2M1Zero = 12;
constexpr GgufCodes GgufCodesOf(uint32_t id) {
  switch (id) {
    case kQ2K:
      return {0, 3};
    case kQ3K:
      return {4, 7};
    case kQ4_1:
    case kQ4K:
      return {0, 15};
    case kQ4_0:
      return {8, 15};
    case kQ5_1:
    case kQ5K:
      return {0, 31};
    case kQ5_0:
      return {16, 31};
    case kMxfp4Blocks:
      return {kE2M1Zero, 2 * kE2M1Zero};
    case kQ6K:
      return {32, 63};
    default:
      return {kGgufZero, 255};
  }
}

// Values of a table as bytes that are `zero` more.
struct CodeTable {
  uint8_t bytes[16];
};
constexpr CodeTable CodesOf(const float (&values)[16], int zero) {
  CodeTable table = {};
  for (int i = 0; i < 16; ++i) {
    table.bytes[i] = static_cast<uint8_t>(values[i] + static_cast<float>(zero));
  }
  return table;
}
constexpr CodeTable kIq4Codes = CodesOf(kIq4Values, kGgufZero);
constexpr CodeTable kE2M1Codes = CodesOf(kE2M1Doubled, kE2M1Zero);

// The codes of inputs 4 kLine to 4 kLine + 3 of a block with this body.
template <uint32_t kId, int kLine>
MOESAIC_INLINE ByteLine CodesAt(const std::byte* body) {
  constexpr int kPart = kLine / 8;  // of 32 inputs
  constexpr int l = kLine % 8;
  const auto line = [body](int at) MOESAIC_BODY { return LoadLine(body + at * kLineBytes); };
  if constexpr (kId == kQ8_0) {
    return line(kLine);
  } else if constexpr (kId == kQ4K) {
    return BitsAt<4 * (kPart % 2), 4, 0>(line(3 + 8 * (kPart / 2) + l));
  } else if constexpr (kId == kQ5K) {
    return Or(BitsAt<4 * (kPart % 2), 4, 0>(line(11 + 8 * (kPart / 2) + l)),
              BitsAt<kPart, 1, 4>(line(3 + l)));
  } else if constexpr (kId == kQ6K) {
    constexpr int kHalf = kPart / 4;
    constexpr int kQuarter = kPart % 4;
    const ByteLine low = line(16 * kHalf + 8 * (kQuarter % 2) + l);
    const ByteLine high = line(32 + 8 * kHalf + l);
    return Or(BitsAt<4 * (kQuarter / 2), 4, 0>(low), BitsAt<2 * kQuarter, 2, 4>(high));
  } else if constexpr (kId == kQ2K) {
    return BitsAt<2 * (kPart % 4), 2, 0>(line(4 + 8 * (kPart / 4) + l));
  } else if constexpr (kId == kQ3K) {
    const ByteLine low = BitsAt<2 * (kPart % 4), 2, 0>(line(8 + 8 * (kPart / 4) + l));
    return Or(low, BitsAt<kPart, 1, 2>(line(l)));
  } else if constexpr (kId == kQ5_0 || kId == kQ5_1) {
    const ByteLine low = BitsAt<4 * (kLine / 4), 4, 0>(line(1 + kLine % 4));
    return Or(low, BitsAt<kLine, 1, 4>(line(0)));
  } else if constexpr (kId == kIq4Xs) {
    return Look(kIq4Codes.bytes, BitsAt<4 * (l / 4), 4, 0>(line(1 + 4 * kPart + l % 4)));
  } else {
    const ByteLine low = BitsAt<4 * (kLine / 4), 4, 0>(line(kLine % 4));
    if constexpr (kId == kIq4Nl) return Look(kIq4Codes.bytes, low);
    if constexpr (kId == kMxfp4Blocks) return Look(kE2M1Codes.bytes, low);
    return low;
  }
}

}  // namespace
}  // namespace moesaic
