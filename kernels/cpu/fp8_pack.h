// Fp8 weights as checkpoints have them into panels (PackedMatrix, kFp8), without becoming numbers
// on the way: the bytes are only put in another order.
//
// A function of its arguments; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace moesaic {

// Row `row` of the matrix into its panel, of which it writes nothing else: codes [k], k values, and
// scales [ceil(k / kQuantGroup)].
void PackFp8Row(const PackedMatrix& w, int64_t row, const std::byte* codes, const float* scales,
                std::byte* panel);

}  // namespace moesaic
