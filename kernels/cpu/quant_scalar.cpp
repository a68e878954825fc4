// Products of integer weights in plain C++: the reference, and the fallback of any CPU. See
// internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_scalar.h"
//
#include "kernels/cpu/internal/ints_scalar.h"
//
#include "kernels/cpu/internal/quant_table.h"

namespace moesaic::internal {

constinit const ProductKernels kQuantScalar = kQuantProducts;

}  // namespace moesaic::internal
