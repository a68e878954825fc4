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

// ggml's MXFP4: an exponent, then 16 bytes with inputs 0 to 15 in their low and 16 to 31 in their
// high halves.
inline constexpr GgufForm kMxfp4Form = {39, 32, 17};

// f32 in blocks, for rows of k inputs.
GgufForm GgufF32Form(int64_t k);

// Row `row` of the matrix, whole blocks one after the other, into its panel.
void PackGgufRow(const PackedMatrix& w, int64_t row, const std::byte* blocks, std::byte* panel);

// The same of a row of MXFP4 as safetensors checkpoints have it, whose blocks have the same bits in
// another order: codes [k / 32][16], two inputs in a byte, the lower half first, exponents [k /
// 32]. The matrix is of kMxfp4Form. False, with the panel in any state, of an exponent that is no
// number (255), which ggml takes for one.
bool PackMxfp4Row(const PackedMatrix& w, int64_t row, const std::byte* codes,
                  const std::byte* exponents, std::byte* panel);

}  // namespace moesaic
