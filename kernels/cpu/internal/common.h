// What the per-ISA kernel sources share besides their lane type: macros, row arithmetic, scalar
// conversions.
//
// The headers in this folder are included by exactly one source per instruction set, each compiled
// with other flags. Everything in them is in an anonymous namespace, and they call no inline
// function or template with external linkage: the linker keeps one copy of such a function, and it
// could be the AVX-512 one in a program that runs on a CPU without it
// (tests/kernels/check_isa_objects.sh looks at the objects).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

#define MOESAIC_INLINE __attribute__((always_inline)) inline
// Of a lambda.
#define MOESAIC_BODY __attribute__((always_inline))
#if defined(__clang__)
#define MOESAIC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MOESAIC_UNROLL _Pragma("GCC unroll 16")
#endif

namespace moesaic {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kLineBytes = 64;  // one step of a packed panel
constexpr float kInfinity = __builtin_inff();

MOESAIC_INLINE void PrefetchLevel2(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

template <typename T>
MOESAIC_INLINE T MinOf(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
MOESAIC_INLINE T MaxOf(T a, T b) {
  return a > b ? a : b;
}
MOESAIC_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
MOESAIC_INLINE int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// Of the head of a panel of coded bf16.
constexpr int64_t CodedHeadLines(int64_t k) { return 1 + (k / 16 + 8) / 16; }

// Lines of one panel: input pairs (bf16), inputs (f32), or groups of inputs and their scales.
MOESAIC_INLINE int64_t PanelLines(WeightType type, int64_t k) {
  const int64_t subgroups = CeilDiv(k, kQuantSubgroup);
  const int64_t groups = CeilDiv(k, kQuantGroup);
  switch (type) {
    case WeightType::kBf16:
      return CeilDiv(k, 2);
    case WeightType::kF32:
      return k;
    case WeightType::kInt8:
      return subgroups * 8 + CeilDiv(groups, 2);
    case WeightType::kInt4:
      return subgroups * 4 + groups + CeilDiv(groups, 2);
    case WeightType::kMxfp4F32:
      return subgroups * 4 + groups;
    case WeightType::kW4A16:
      return subgroups * 4 + CeilDiv(subgroups, 2);
    case WeightType::kFp8:
      return groups + CeilDiv(k, 4);
    case WeightType::kBf16Coded:
      return CodedHeadLines(k) + CeilDiv(k, kCodedInputs) * 3;
    case WeightType::kMxfp4:  // no matrix is
    case WeightType::kGguf:   // its form says
    case WeightType::kGgufF32:
      break;
  }
  return 0;
}

// Where things lie in a panel of integer weights: a pair of groups has a line of scales before it,
// a group of int4 a line of multipliers.
constexpr int64_t kGroupPanels = kQuantGroup / kLanes;  // whose outputs are a group of activations
constexpr int64_t kSubgroups = kQuantGroup / kQuantSubgroup;
constexpr int64_t kScaleBytes = kLineBytes / 2;  // of one group
constexpr int64_t SubgroupLines(WeightType type) { return type == WeightType::kInt8 ? 8 : 4; }
constexpr int64_t MultiplierLines(WeightType type) { return type == WeightType::kInt8 ? 0 : 1; }
constexpr int64_t GroupBytes(WeightType type) {
  return (MultiplierLines(type) + kSubgroups * SubgroupLines(type)) * kLineBytes;
}
constexpr int64_t PairBytes(WeightType type) { return kLineBytes + 2 * GroupBytes(type); }
// The first line of a group, and its scales.
constexpr int64_t GroupOffset(WeightType type, int64_t group) {
  return group / 2 * PairBytes(type) + kLineBytes + group % 2 * GroupBytes(type);
}
constexpr int64_t ScalesOffset(WeightType type, int64_t group) {
  return group / 2 * PairBytes(type) + group % 2 * kScaleBytes;
}

MOESAIC_INLINE int64_t PanelLines(const PackedMatrix& w) {
  if (!IsGguf(w.type)) return PanelLines(w.type, w.k);
  return CeilDiv(w.k / w.form.values * w.form.bytes * kLanes, kLineBytes);
}

// What the panels of a matrix have in common.
struct PanelShape {
  int64_t k;  // inputs
  int64_t lines;
  // Of kGguf: of the panels at even and at odd places of a call.
  GgufForm forms[2] = {};
};

MOESAIC_INLINE uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
MOESAIC_INLINE float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
MOESAIC_INLINE float WidenBf16(uint16_t value) {
  return FloatOf(static_cast<uint32_t>(value) << 16);
}
// To nearest even; NaN stays NaN (the rule of F32ToBf16).
MOESAIC_INLINE uint16_t RoundBf16(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// To nearest even; a NaN becomes the quiet one (the rule of VCVTPS2PH for that one).
MOESAIC_INLINE uint16_t RoundF16(float value) {
  const uint32_t bits = BitsOf(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more
    half = 0x7c00;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the least normal number
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {  // a multiple of 2^-24: adding 2^-1 rounds to one, in the low bits
    half = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

// The value of an fp8 code as the bits of a bf16, which has all of them; NaN is 480, as its scale
// says the rest (PackedMatrix).
MOESAIC_INLINE uint32_t Bf16OfFp8(uint32_t code) {
  const uint32_t magnitude = code & 127;
  const uint32_t normal = (magnitude << 4) + 0x3c00;
  // Whole numbers of 2^-9.
  const uint32_t value =
      magnitude < 8 ? BitsOf(static_cast<float>(magnitude) * 0x1p-9f) >> 16 : normal;
  return value | (code & 128) << 8;
}

// Loads and stores at any alignment.
template <typename T>
MOESAIC_INLINE T LoadAs(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}
template <typename T>
MOESAIC_INLINE void StoreAs(void* p, T value) {
  __builtin_memcpy(p, &value, sizeof(value));
}

}  // namespace
}  // namespace moesaic
