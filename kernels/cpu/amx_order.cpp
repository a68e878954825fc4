// Products of class kAmxBf16 for few rows, in AVX-512. See internal/common.h for why this file
// includes no more than it does.
#include "kernels/cpu/internal/vec_avx512.h"
//
#include "kernels/cpu/internal/coded_avx512.h"
//
#include "kernels/cpu/internal/amx_tables.h"
#include "kernels/cpu/internal/matmul.h"
#include "kernels/cpu/internal/tables.h"
//
#include "kernels/cpu/internal/amx_order.h"

namespace moesaic::internal {

constinit const ProductKernels kAmxOrderProducts = {.matmul = MatmulOf<AmxOrderProduct>,
                                                    .gate_up = GateUpOf<AmxOrderProduct>};
constinit const ProductKernels kAmxCodedOrderProducts = {.matmul = MatmulOf<AmxCodedOrderProduct>,
                                                         .gate_up = GateUpOf<AmxCodedOrderProduct>};

}  // namespace moesaic::internal
