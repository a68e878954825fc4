#include "serving/model/mxfp4_weights.h"

#include <array>
#include <limits>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace

float E2M1ToF32(int half) { return kE2M1[static_cast<size_t>(half)]; }

float E8M0ToF32(uint8_t exponent) {
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  // 2^-127 is a denormal.
  const uint32_t bits = exponent == 0 ? 0x00400000u : static_cast<uint32_t>(exponent) << 23;
  return __builtin_bit_cast(float, bits);
}

void DequantiseMxfp4(const std::byte* blocks, const std::byte* scales, int64_t k, float* out) {
  CHECK_EQ(k % kMxfp4Group, 0);
  for (int64_t group = 0; group < k / kMxfp4Group; ++group) {
    const float scale = E8M0ToF32(static_cast<uint8_t>(scales[group]));
    for (int64_t i = 0; i < kMxfp4Group / 2; ++i) {
      const auto byte = static_cast<int>(blocks[group * kMxfp4Group / 2 + i]);
      *out++ = E2M1ToF32(byte & 15) * scale;
      *out++ = E2M1ToF32(byte >> 4) * scale;
    }
  }
}

}  // namespace moesaic
