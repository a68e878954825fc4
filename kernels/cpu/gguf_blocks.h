// The values of GGUF's blocks, exactly those that ggml computes (src/ggml-quants.c,
// dequantize_row_*): f32 products in the same order, so that `gguf` (pip) gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/io/gguf_types.h"

namespace moesaic {

// Whether DequantiseGguf knows the values of the type.
bool HasGgufValues(const GgufType& type);

// out.size() values, whole blocks, from `blocks`, which may be unaligned.
void DequantiseGguf(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace moesaic
