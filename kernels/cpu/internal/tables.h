// What the per-ISA sources define; KernelsFor makes the tables of it.
#pragma once

#include "kernels/cpu/kernels.h"

namespace moesaic::internal {

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512Kernels;

struct ProductKernels {
  decltype(CpuKernels::matmul) matmul;
  decltype(CpuKernels::gate_up) gate_up;
};
// Where class kBf16 differs from kF32; the rest of its table is that of AVX-512.
extern const ProductKernels kAvx512Bf16Products;
// Of integer weights.
extern const ProductKernels kQuantScalar;
extern const ProductKernels kQuantAvx2;
extern const ProductKernels kQuantAvxVnni;
extern const ProductKernels kQuantAvx512Vnni;

}  // namespace moesaic::internal
