// Products of integer weights by VPDPBUSD in ymm registers. See
// internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx2.h"
//
#include "kernels/cpu/internal/ints_avx_vnni.h"
//
#include "kernels/cpu/internal/quant_table.h"

namespace moesaic::internal {

constinit const ProductKernels kQuantAvxVnni = kQuantProducts;

}  // namespace moesaic::internal
