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

// Inputs whose sum is multiplied by a scale; 0: weights have their values themselves.
template <Weights kType>
constexpr int kScaleInputs = kType == Weights::kBf16 || kType == Weights::kMxfp4 ? 0
                             : kType == Weights::kW4A16                          ? 32
                                                                                 : 128;

// Of all but bf16: lines of one subgroup; of integers also of a group, int4's with its line of
// multipliers.
template <Weights kType>
constexpr int kSubgroupLines = kType == Weights::kInt8 || kType == Weights::kFp8 ? 8 : 4;
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
// Where the line of scales or exponents is of what shares one: four subgroups, of w4a16 two.
template <Weights kType>
__device__ __forceinline__ int64_t HeadOffset(int64_t subgroup) {
  constexpr int kShare = kType == Weights::kW4A16 ? 2 : kSubgroups;
  return subgroup / kShare * (1 + kShare * kSubgroupLines<kType>)*kLineBytes;
}
// Where the weights of a subgroup, counted from the beginning of the panel, begin.
template <Weights kType>
__device__ __forceinline__ int64_t SubgroupOffset(int64_t subgroup) {
  if constexpr (kType != Weights::kInt8 && kType != Weights::kInt4) {
    constexpr int kShare = kType == Weights::kW4A16 ? 2 : kSubgroups;
    return HeadOffset<kType>(subgroup) + (1 + subgroup % kShare * kSubgroupLines<kType>)*kLineBytes;
  } else {
    return GroupOffset<kType>(subgroup / kSubgroups) +
           (kMultiplierLines<kType> + subgroup % kSubgroups * kSubgroupLines<kType>)*kLineBytes;
  }
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

// E2M1: a sign above two bits of exponent and one of mantissa. E4M3: likewise of four and three;
// what stands for NaN gives 480, its scale is NaN. Both are exact, as bf16 too.
__device__ __forceinline__ float WidenE2M1(uint32_t bits) {
  return WidenBf16((bits & 8u) << 12 | (bits & 7u) << 6) * 0x1p126f;
}
__device__ __forceinline__ float WidenE4M3(uint32_t bits) {
  return WidenBf16((bits & 0x80u) << 8 | (bits & 0x7fu) << 4) * 0x1p120f;
}
// 2^(exponent - 127), 255 is NaN: as bf16 and as f32.
__device__ __forceinline__ uint32_t PowerOfTwoBits(uint32_t exponent) {
  return exponent == 0 ? 0x40u : (exponent == 255 ? 0x7fc0u : exponent << 7);
}
__device__ __forceinline__ float PowerOfTwo(uint32_t exponent) {
  return WidenBf16(PowerOfTwoBits(exponent));
}

// One weight, of a type that HoldsRows.
template <Weights kType>
__device__ __forceinline__ float WeightAt(const std::byte* panel, int output, int64_t input) {
  static_assert(HoldsRows(kType));
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
  const uint4 v = LoadConstant(line + quarter * 16);
  return {{v.x, v.y, v.z, v.w}};
}

// The scale of an output and the inputs beside `input`.
template <Weights kType>
__device__ __forceinline__ float ScaleAt(const std::byte* panel, int64_t input, int output) {
  const int64_t subgroup = input / kSubgroupInputs;
  if constexpr (kType == Weights::kFp8) {
    return *reinterpret_cast<const float*>(panel + HeadOffset<kType>(subgroup) + output * 4);
  } else if constexpr (kType == Weights::kW4A16) {
    return WidenBf16(
        HalfwordOf(panel + HeadOffset<kType>(subgroup) + subgroup % 2 * 32 + output * 2));
  } else {
    return WidenHalf(HalfwordOf(panel + ScaleOffset<kType>(input / kGroupInputs) + output * 2));
  }
}
// The same of outputs 8 half to 8 half + 7.
template <Weights kType>
__device__ __forceinline__ void LoadScales(const std::byte* panel, int64_t input, int half,
                                           float (&out)[8]) {
  const int64_t subgroup = input / kSubgroupInputs;
  if constexpr (kType == Weights::kFp8) {
    const auto* scales = reinterpret_cast<const float*>(panel + HeadOffset<kType>(subgroup));
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = scales[half * 8 + i];
  } else {
    const int64_t offset = kType == Weights::kW4A16
                               ? HeadOffset<kType>(subgroup) + subgroup % 2 * 32
                               : ScaleOffset<kType>(input / kGroupInputs);
    const Quarter scales = LoadQuarter(panel + offset, half);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = scales.output[i / 2] >> (i % 2 * 16);
      out[i] = kType == Weights::kW4A16 ? WidenBf16(bits) : WidenHalf(bits);
    }
  }
}
// The exponents of a subgroup of mxfp4 weights, of the outputs of a quarter, a byte each.
__device__ __forceinline__ uint32_t ExponentsOf(const std::byte* panel, int64_t subgroup,
                                                int quarter) {
  return *reinterpret_cast<const uint32_t*>(panel + HeadOffset<Weights::kMxfp4>(subgroup) +
                                            subgroup % kSubgroups * 16 + quarter * 4);
}
// Number `i` of eight in a register of mxfp4 weights, without its exponent, or of w4a16 weights.
template <Weights kType>
__device__ __forceinline__ float NibbleAt(uint32_t bits, int i) {
  const uint32_t nibble = bits >> (4 * i) & 15u;
  if constexpr (kType == Weights::kMxfp4) {
    return WidenE2M1(nibble);
  } else {
    return static_cast<float>(nibble ^ 8u) - 8.0f;
  }
}

// The four bytes of a register as numbers less `zero`.
__device__ __forceinline__ void BytesToFloats(uint32_t bytes, float zero, float (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = static_cast<float>(bytes >> (8 * i) & 0xffu) - zero;
}

}  // namespace
}  // namespace moesaic::cuda
