// DType, and TensorView: a typed, shaped, contiguous, non-owning view of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/check.h"

namespace moesaic {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI8,
  kI4,
  kF8E4M3,
  kI32,
  kI64,
  kU8,
  kBool,
  kMxfp4,
  kGguf,
  kW4A16,
  kBf16Coded
};

// "bf16", "f32", ...
const char* DTypeName(DType dtype);

// Bits of one element (kI4, kMxfp4 and kW4A16 have 4, and scales beside them; kBf16Coded has tables
// and exceptions beside its 12; kGguf, blocks of ggml's types, at least 2).
constexpr int DTypeBits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 32;
    case DType::kF16:
    case DType::kBF16:
      return 16;
    case DType::kI64:
      return 64;
    case DType::kI4:
    case DType::kMxfp4:
    case DType::kW4A16:
      return 4;
    case DType::kBf16Coded:
      return 12;
    case DType::kGguf:
      return 2;
    default:
      return 8;
  }
}

// At most four dimensions, row-major.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape = {0, 0, 0, 0};

  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  template <typename T>
  const T* as() const {
    CHECK_EQ(static_cast<int>(sizeof(T) * 8), DTypeBits(dtype));
    return static_cast<const T*>(data);
  }
};

// bf16 is the upper half of an f32; rounding is to nearest even, NaN stays NaN.
inline float Bf16ToF32(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof(result));
  return result;
}
inline uint16_t F32ToBf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float F16ToF32(uint16_t value);

}  // namespace moesaic
