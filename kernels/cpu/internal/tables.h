// What the per-ISA sources define; KernelsFor makes the tables of it.
#pragma once

#include "kernels/cpu/kernels.h"

namespace moesaic::internal {

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512Kernels;

// Where class kBf16 differs from kF32; the rest of its table is that of AVX-512.
extern const ProductKernels kAvx512Bf16Products;
// Of coded bf16 weights.
extern const ProductKernels kAvx512Bf16CodedProducts;
// Of fp8 weights: those of both classes with bf16 activations.
extern const ProductKernels kAvx512Bf16Fp8Products;
// And class kAmxBf16.
extern const ProductKernels kAmxBf16Products;
// The same bits of bf16 weights in AVX-512 alone, for few rows.
extern const ProductKernels kAmxOrderProducts;
// Attention of class kAmxBf16.
using AttendChunksKernel = decltype(CpuKernels::attend_chunks);
extern const AttendChunksKernel kAmxAttendChunks;
// Of integer weights.
extern const ProductKernels kQuantScalar;
extern const ProductKernels kQuantAvx2;
extern const ProductKernels kQuantAvxVnni;
extern const ProductKernels kQuantAvx512;
extern const ProductKernels kQuantAvx512Vnni;
extern const ProductKernels kQuantAmx;

}  // namespace moesaic::internal
