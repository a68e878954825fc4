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

// Lines of one panel: input pairs (bf16), inputs (f32), or groups of inputs and their scales.
MOESAIC_INLINE int64_t PanelLines(WeightType type, int64_t k) {
  const int64_t groups = CeilDiv(k, kQuantGroup);
  switch (type) {
    case WeightType::kBf16:
      return CeilDiv(k, 2);
    case WeightType::kF32:
      return k;
    case WeightType::kInt8:
      return groups * 8 + CeilDiv(groups, 2);
    case WeightType::kInt4:
      return groups * 4 + CeilDiv(groups, 2);
  }
  return 0;
}

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
