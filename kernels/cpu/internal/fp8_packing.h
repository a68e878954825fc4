// Where fp8 weights lie in a panel (PackedMatrix, kFp8), and how other numbers become fp8. Included
// after Vec16 and math.h.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

constexpr int64_t kFp8LineInputs = 4;  // whose values a line has
constexpr int64_t kFp8GroupLines = kQuantGroup / kFp8LineInputs;
constexpr int64_t kFp8GroupBytes = (1 + kFp8GroupLines) * kLineBytes;  // with its scales before it
// The place of an input among the four of its line.
constexpr int64_t Fp8Place(int64_t input) { return (input & 1) * 2 + (input >> 1 & 1); }

// The code nearest to a magnitude of at most 448, of two as near the even one.
MOESAIC_INLINE uint32_t Fp8Code(float magnitude) {
  if (magnitude < 0x1p-6f) return static_cast<uint32_t>(__builtin_rintf(magnitude * 0x1p9f));
  const uint32_t bits = BitsOf(magnitude);
  const uint32_t code = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - 120 * 8;
  return MinOf<uint32_t>(code, 126);
}

// weights: [inputs of a group][16]; returns where the next group goes. The scale makes 448, the
// largest value, of the largest magnitude. A group with a NaN or an infinity is NaN.
inline std::byte* QuantizeFp8(const float* weights, int64_t inputs, std::byte* to) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  constexpr float kLargest = 448.0f;
  constexpr float kLeast = 0x1p-100f;  // below it a group is zero
  std::byte* const lines = to + kLineBytes;
  const int64_t end = RoundUp(inputs, kFp8LineInputs);
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    uint32_t largest = 0;  // of magnitudes, as whole numbers: they are in the same order
    for (int64_t i = 0; i < inputs; ++i) {
      largest = MaxOf(largest, BitsOf(weights[i * kLanes + lane]) & 0x7fffffffu);
    }
    const bool finite = largest < kInfinityBits;
    const bool zero = !finite || FloatOf(largest) < kLeast;
    const float scale = zero ? 0.0f : FloatOf(largest) / kLargest;
    StoreAs(to + lane * 4, finite ? scale : __builtin_nanf(""));
    for (int64_t i = 0; i < end; ++i) {
      uint32_t code = 0;
      if (!zero && i < inputs) {
        const uint32_t bits = BitsOf(weights[i * kLanes + lane]);
        code = Fp8Code(FloatOf(bits & 0x7fffffffu) / scale) | (bits >> 31 << 7);
      }
      StoreAs(lines + i / kFp8LineInputs * kLineBytes + lane * 4 + Fp8Place(i),
              static_cast<uint8_t>(code));
    }
  }
  return lines + end / kFp8LineInputs * kLineBytes;
}

inline void UnpackFp8(const PackedMatrix& w, int64_t row, float* out) {
  const int64_t lane = row % kLanes;
  const std::byte* panel = w.data + row / kLanes * PanelLines(w.type, w.k) * kLineBytes;
  for (int64_t i = 0; i < w.k; ++i) {
    const std::byte* const group = panel + i / kQuantGroup * kFp8GroupBytes;
    const int64_t input = i % kQuantGroup;
    const auto code = LoadAs<uint8_t>(group + (1 + input / kFp8LineInputs) * kLineBytes + lane * 4 +
                                      Fp8Place(input));
    out[i] = FloatOf(Bf16OfFp8(code) << 16) * LoadAs<float>(group + lane * 4);
  }
}

}  // namespace
}  // namespace moesaic
