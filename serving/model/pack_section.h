// How a matrix of an expert comes from a checkpoint's bytes into a blob. Used by the two ways of
// reading experts (expert_sources.h).
//
// Thread contract: a plain function on the caller's memory.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/tensor.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/stored_tensor.h"

namespace moesaic {

// Packs a matrix to where it belongs: as it lies where it lies as rows of floats, else the panels
// one after the other, from f32 but for mxfp4, GGUF's blocks, fp8 and packed int4 that stay so.
// Throws Error(kCorrupt) of MXFP4 without a number that is to be GGUF's blocks.
void PackSection(const PackedMatrix& matrix, const CpuKernels& kernels, const RowForm& form,
                 std::span<const std::span<const std::byte>> pieces, std::span<const DType> dtypes);

}  // namespace moesaic
