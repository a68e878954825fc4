// MXFP4 weights as checkpoints have them into panels (PackedMatrix, kMxfp4F32), without becoming
// numbers on the way: the bytes are only put in another order.
//
// A function of its arguments; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace moesaic {

// `rows` (1 to 16) rows of k inputs, a multiple of kMxfp4Group, into the panel at `to`. blocks:
// [k / 32, 16] bytes a row, `block_stride` bytes apart, two inputs in a byte, the lower half first;
// exponents: [k / 32] bytes a row, `exponent_stride` apart. Returns false, with the panel in any
// state, where pack_panels of the same numbers would take other exponents (a group without a value
// of 4 or 6, or with the largest exponents): then that has to do it, so that the bytes of a panel
// do not depend on who packed it.
bool RepackMxfp4Panel(const std::byte* blocks, int64_t block_stride, const std::byte* exponents,
                      int64_t exponent_stride, int64_t rows, int64_t k, std::byte* to);

// The other way, a row of a panel: codes [k / 32, 16], exponents [k / 32].
void TakeMxfp4Row(const std::byte* panel, int64_t row, int64_t k, std::byte* codes,
                  std::byte* exponents);

}  // namespace moesaic
