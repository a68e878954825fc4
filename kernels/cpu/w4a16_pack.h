// W4A16 weights as checkpoints have them into panels (PackedMatrix, kW4A16), without becoming
// numbers on the way: the bits are only put in another order.
//
// A function of its arguments; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace moesaic {

// Row `row` of the matrix into its panel, of which it writes nothing else: codes [k / 2], two
// inputs in a byte, the lower half first, each a value plus 8, and scales [k / group] bf16. k is a
// multiple of `group`, and that one of kW4A16Group (CHECK).
void PackW4A16Row(const PackedMatrix& w, int64_t row, const std::byte* codes,
                  const uint16_t* scales, int64_t group, std::byte* panel);

}  // namespace moesaic
