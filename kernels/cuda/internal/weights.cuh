// How packed weights are read on a device (kernels/cuda/packed_weights.h, docs/cuda.md). Included
// by .cu files only, after device.cuh.
//
// A line is 64 bytes: some inputs of all 16 outputs of a panel. A lane takes a quarter of a line,
// the same inputs of four outputs, with one load.
#pragma once

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/packed_weights.h"

namespace moesaic::cuda {
namespace {

constexpr int64_t kLineBytes = 64;

// Integer weights: lines of one subgroup, and of a group, int4's with its line of multipliers.
template <Weights kType>
constexpr int kSubgroupLines = kType == Weights::kInt8 ? 8 : 4;
constexpr int kSubgroups = static_cast<int>(kGroupInputs / kSubgroupInputs);
template <Weights kType>
constexpr int kMultiplierLines = kType == Weights::kInt8 ? 0 : 1;
template <Weights kType>
constexpr int kGroupLines = kMultiplierLines<kType> + kSubgroups* kSubgroupLines<kType>;

// Where group `group` of integer weights begins, and its line of scales [16] f16, within a panel.
template <Weights kType>
__device__ __forceinline__ int64_t GroupOffset(int64_t group) {
  return (group / 2 * (1 + 2 * kGroupLines<kType>)+1 + group % 2 * kGroupLines<kType>)*kLineBytes;
}
template <Weights kType>
__device__ __forceinline__ int64_t ScaleOffset(int64_t group) {
  return group / 2 * (1 + 2 * kGroupLines<kType>)*kLineBytes + group % 2 * 32;
}
// Where the weights of a subgroup, counted from the beginning of the panel, begin.
template <Weights kType>
__device__ __forceinline__ int64_t SubgroupOffset(int64_t subgroup) {
  return GroupOffset<kType>(subgroup / kSubgroups) +
         (kMultiplierLines<kType> + subgroup % kSubgroups * kSubgroupLines<kType>)*kLineBytes;
}

// A multiplier of int4: a weight is the group's scale times factor * (half - zero).
struct HalfScale {
  float factor;
  float zero;
};
__device__ __forceinline__ HalfScale HalfScaleOf(uint32_t multiplier) {
  return {static_cast<float>(multiplier & 127u), static_cast<float>(8u - (multiplier >> 7 & 1u))};
}

__device__ __forceinline__ uint32_t ByteOf(const std::byte* address) {
  return *reinterpret_cast<const uint8_t*>(address);
}
__device__ __forceinline__ uint32_t HalfwordOf(const std::byte* address) {
  return *reinterpret_cast<const uint16_t*>(address);
}

// One weight.
template <Weights kType>
__device__ __forceinline__ float WeightAt(const std::byte* panel, int output, int64_t input) {
  if constexpr (kType == Weights::kBf16) {
    return WidenBf16(HalfwordOf(panel + input / 2 * kLineBytes + output * 4 + input % 2 * 2));
  } else {
    const int64_t group = input / kGroupInputs;
    const int within = static_cast<int>(input % kSubgroupInputs);
    const std::byte* lines = panel + SubgroupOffset<kType>(input / kSubgroupInputs);
    const float scale = WidenHalf(HalfwordOf(panel + ScaleOffset<kType>(group) + output * 2));
    if constexpr (kType == Weights::kInt8) {
      const uint32_t level = ByteOf(lines + within / 4 * kLineBytes + output * 4 + within % 4);
      return (static_cast<float>(level) - 128.0f) * scale;
    } else {
      const uint32_t both = ByteOf(lines + within / 8 * kLineBytes + output * 4 + within % 4);
      const uint32_t level = within % 8 < 4 ? both & 15u : both >> 4;
      const HalfScale half = HalfScaleOf(ByteOf(panel + GroupOffset<kType>(group) + output * 4 +
                                                input % kGroupInputs / kSubgroupInputs));
      return (static_cast<float>(level) - half.zero) * half.factor * scale;
    }
  }
}

// The quarter of a line as four registers, by output.
struct Quarter {
  uint32_t output[4];
};
__device__ __forceinline__ Quarter LoadQuarter(const std::byte* line, int quarter) {
  const uint4 v = LoadVector(line + quarter * 16);
  return {{v.x, v.y, v.z, v.w}};
}

// The four bytes of a register as numbers less `zero`.
__device__ __forceinline__ void BytesToFloats(uint32_t bytes, float zero, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = static_cast<float>(bytes >> (8 * i) & 0xffu) - zero;
}

}  // namespace
}  // namespace moesaic::cuda
