// MXFP4 weights (PackedMatrix, kMxfp4F32): their format for products (four_bit_product.h), and
// their packing. Included after Vec16 and math.h.
#pragma once

#include "kernels/cpu/internal/four_bit_product.h"

namespace moesaic {
namespace {

static_assert(kMxfp4Group == kFourBitGroup);

constexpr uint8_t kNoNumber = 255;  // as an exponent

// The nearest value to a magnitude, of two as near the one whose last bit is 0; 6 from 5 on.
MOESAIC_INLINE int E2M1Code(float magnitude) {
  return (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
         (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
}

// weights: [32][16]. The exponent is that of the largest magnitude, less the 2 of 4, so that a
// group of values of the format stays what it is. A group with a NaN or an infinity is NaN.
inline void QuantizeMxfp4(const float* weights, std::byte* lines, std::byte* exponents) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    uint32_t largest = 0;  // of magnitudes, as whole numbers: they are in the same order
    for (int64_t i = 0; i < kMxfp4Group; ++i) {
      largest = MaxOf(largest, BitsOf(weights[i * kLanes + lane]) & 0x7fffffffu);
    }
    const bool finite = largest < kInfinityBits;
    const auto exponent = static_cast<int32_t>(MaxOf<uint32_t>(largest >> 23, 2) - 2);
    exponents[lane] = static_cast<std::byte>(finite ? exponent : kNoNumber);
    // 2^(127 - exponent); the exponent is at most 252.
    const float inverse = FloatOf(static_cast<uint32_t>(254 - MinOf(exponent, 252)) << 23);
    for (int64_t line = 0; line < kFourBitGroupLines; ++line) {
      uint32_t codes = 0;
      for (int64_t i = 0; i < kLineInputs; ++i) {
        const uint32_t bits = BitsOf(weights[(line * kLineInputs + i) * kLanes + lane]);
        const float magnitude = FloatOf(bits & 0x7fffffffu) * inverse;
        const auto code = static_cast<uint32_t>(E2M1Code(magnitude)) | bits >> 31 << 3;
        codes |= (finite ? code : 0u) << (4 * i);
      }
      StoreAs(lines + line * kLineBytes + lane * 4, codes);
    }
  }
}

struct Mxfp4Format : FourBitLayout<1> {
  template <int kCode>
  MOESAIC_INLINE static Vec16 Values(CodeLine codes) {
    return E2M1<kCode>(codes);
  }
  MOESAIC_INLINE static Vec16 Scales(const std::byte* exponents) { return E8M0(exponents); }
  static void Quantize(const float* weights, std::byte* lines, std::byte* scales) {
    QuantizeMxfp4(weights, lines, scales);
  }
  static float Value(uint32_t code, const std::byte* scale) {
    constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const auto exponent = LoadAs<uint8_t>(scale);
    if (exponent == kNoNumber) return __builtin_nanf("");
    const float value =
        kMagnitudes[code & 7] * FloatOf(exponent == 0 ? 0x00400000u : uint32_t{exponent} << 23);
    return code < 8 ? value : -value;
  }
};

}  // namespace
}  // namespace moesaic
