// What the per-ISA sources define; KernelsFor makes the tables of it.
#pragma once

#include "kernels/cpu/kernels.h"

namespace moesaic::internal {

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512Kernels;

// Where class kBf16 differs from kF32; the rest of its table is that of AVX-512.
struct ProductKernels {
  decltype(CpuKernels::matmul) matmul;
  decltype(CpuKernels::gate_up) gate_up;
};
extern const ProductKernels kAvx512Bf16Products;

}  // namespace moesaic::internal
