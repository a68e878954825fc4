// Weights of MXFP4 checkpoints (gpt-oss; OCP Microscaling Formats 1.0, sections 5.3 and 6.3):
// NAME_blocks [..., n, k / 32, 16] has two values of 4 bits (E2M1) in a byte, the lower half first,
// and NAME_scales [..., n, k / 32] has the exponent (E8M0) of the power of two that 32 of them are
// multiplied with. Every such product is a number of f32, and of bf16 but for the smallest.
//
// Thread contract: plain functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace moesaic {

// Of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, from 8 on, their negatives.
float E2M1ToF32(int half);
// 2^(exponent - 127); 255 is NaN.
float E8M0ToF32(uint8_t exponent);

// A row: blocks [k / 32, 16], scales [k / 32], out [k]; k is a multiple of 32.
void DequantiseMxfp4(const std::byte* blocks, const std::byte* scales, int64_t k, float* out);

}  // namespace moesaic
