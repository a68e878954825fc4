// Products of integer weights by VPMADDUBSW in zmm registers. See
// internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx512.h"
//
#include "kernels/cpu/internal/ints_avx512.h"
//
#include "kernels/cpu/internal/quant_table.h"

namespace moesaic::internal {

constinit const ProductKernels kQuantAvx512 = kQuantProducts;

}  // namespace moesaic::internal
