// The avx512 kernels. See internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx512.h"
//
#include "kernels/cpu/internal/coded_avx512.h"
#include "kernels/cpu/internal/columns_avx512.h"
#include "kernels/cpu/internal/lines_avx512.h"
//
#include "kernels/cpu/internal/f32_table.h"
#include "kernels/cpu/internal/tables.h"

namespace moesaic::internal {

constinit const CpuKernels kAvx512Kernels = F32Table(Isa::kAvx512);

}  // namespace moesaic::internal
