// Numbers of 16 bits as the PTX ISA has them: f16 (IEEE 754 binary16) and bf16.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace moesaic::ptx {

inline float Bfloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To nearest, ties to even; every NaN becomes the one that the machine has.
inline uint16_t FloatToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float HalfToFloat(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return mantissa != 0 ? std::bit_cast<float>(0x7fffffffu) : sign * HUGE_VALF;
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

}  // namespace moesaic::ptx
