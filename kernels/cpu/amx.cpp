// Products on the tile registers of AMX, of bf16 (plain and coded) and of integer weights. See
// internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx512.h"
//
#include "kernels/cpu/internal/amx_tiles.h"
#include "kernels/cpu/internal/coded_avx512.h"
#include "kernels/cpu/internal/ints_avx512_vnni.h"
//
#include "kernels/cpu/internal/quant_tiles.h"
#include "kernels/cpu/internal/tiles.h"
//
#include "kernels/cpu/internal/amx_tables.h"
#include "kernels/cpu/internal/matmul.h"
#include "kernels/cpu/internal/tables.h"
//
#include "kernels/cpu/internal/amx_products.h"

namespace moesaic::internal {

constinit const ProductKernels kAmxBf16Products = kAmxBf16;
constinit const ProductKernels kAmxCodedProducts = kAmxCoded;
constinit const ProductKernels kQuantAmx = kAmxIntegers;

}  // namespace moesaic::internal
