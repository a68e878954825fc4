// The values of GGUF's blocks, exactly those that ggml computes (src/ggml-quants.c,
// dequantize_row_*): f32 products in the same order, so that `gguf` (pip) gives the same bits; and
// blocks in panels, which keep their bits (PackedMatrix, kGguf).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/io/gguf_types.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// Whether DequantiseGguf knows the values of the type.
bool HasGgufValues(const GgufType& type);

// out.size() values, whole blocks, from `blocks`, which may be unaligned.
void DequantiseGguf(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out);

// Of a matrix whose rows are of this type.
GgufForm GgufFormOf(const GgufType& type);

// f32 in blocks, for rows of k inputs.
GgufForm GgufF32Form(int64_t k);

// Row `row` of the matrix, whole blocks one after the other, into its panel.
void PackGgufRow(const PackedMatrix& w, int64_t row, const std::byte* blocks, std::byte* panel);

}  // namespace moesaic
