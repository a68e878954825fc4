// W4A16 weights (PackedMatrix, kW4A16): their format for products (four_bit_product.h), and their
// packing. Included after Vec16 and math.h.
#pragma once

#include "kernels/cpu/internal/four_bit_product.h"

namespace moesaic {
namespace {

static_assert(kW4A16Group == kFourBitGroup);

// The nearest whole number to a magnitude of at most 15, of two as near the even one.
MOESAIC_INLINE int32_t NearestWhole(float magnitude) {
  constexpr float kWhole = 8388608.0f;  // 2^23: from there on an f32 has no fraction
  return static_cast<int32_t>(BitsOf(magnitude + kWhole) - BitsOf(kWhole));
}

// weights: [32][16]. As compressed-tensors quantises symmetrically: the scale is the largest
// magnitude divided by 7.5, rounded to bf16, and a value goes to the nearest of -8 to 7. A group
// with a NaN or an infinity is NaN.
inline void QuantizeW4A16(const float* weights, std::byte* lines, std::byte* scales) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  constexpr uint16_t kNotANumber = 0x7fc0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    uint32_t largest = 0;  // of magnitudes, as whole numbers: they are in the same order
    for (int64_t i = 0; i < kW4A16Group; ++i) {
      largest = MaxOf(largest, BitsOf(weights[i * kLanes + lane]) & 0x7fffffffu);
    }
    const bool finite = largest < kInfinityBits;
    const uint16_t scale = finite ? RoundBf16(FloatOf(largest) / 7.5f) : kNotANumber;
    StoreAs(scales + lane * 2, scale);
    const float divisor = FloatOf(uint32_t{scale} << 16);
    for (int64_t line = 0; line < kFourBitGroupLines; ++line) {
      uint32_t codes = 0;
      for (int64_t i = 0; finite && scale != 0 && i < kLineInputs; ++i) {
        const uint32_t bits = BitsOf(weights[(line * kLineInputs + i) * kLanes + lane]);
        const int32_t whole = NearestWhole(FloatOf(bits & 0x7fffffffu) / divisor);
        const int32_t value = bits >> 31 != 0 ? -MinOf(whole, 8) : MinOf(whole, 7);
        codes |= (static_cast<uint32_t>(value) & 15u) << (4 * i);
      }
      StoreAs(lines + line * kLineBytes + lane * 4, codes);
    }
  }
}

// A value of at most 4 bits times a bf16 of 8 is exact in f32.
struct W4A16Format : FourBitLayout<2> {
  template <int kCode>
  MOESAIC_INLINE static Vec16 Values(CodeLine codes) {
    return SignedNibbles<kCode>(codes);
  }
  MOESAIC_INLINE static Vec16 Scales(const std::byte* scales) { return LoadBf16(scales); }
  static void Quantize(const float* weights, std::byte* lines, std::byte* scales) {
    QuantizeW4A16(weights, lines, scales);
  }
  static float Value(uint32_t code, const std::byte* scale) {
    const auto number = static_cast<int32_t>(code ^ 8u) - 8;
    return static_cast<float>(number) * FloatOf(uint32_t{LoadAs<uint16_t>(scale)} << 16);
  }
};

}  // namespace
}  // namespace moesaic
