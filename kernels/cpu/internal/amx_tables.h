// What the sources of AMX define beside what tables.h names.
#pragma once

#include "kernels/cpu/kernels.h"

namespace moesaic::internal {

// Of coded bf16 weights, and the same bits in AVX-512 alone, for few rows.
extern const ProductKernels kAmxCodedProducts;
extern const ProductKernels kAmxCodedOrderProducts;
using IndexScoresKernel = decltype(CpuKernels::index_scores);
extern const IndexScoresKernel kAmxIndexScores;

}  // namespace moesaic::internal
