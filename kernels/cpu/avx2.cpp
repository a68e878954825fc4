// The avx2 kernels. See internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx2.h"
//
#include "kernels/cpu/internal/coded_avx2.h"
#include "kernels/cpu/internal/columns_avx2.h"
#include "kernels/cpu/internal/lines_avx2.h"
//
#include "kernels/cpu/internal/f32_table.h"
#include "kernels/cpu/internal/tables.h"

namespace moesaic::internal {

constinit const CpuKernels kAvx2Kernels = F32Table(Isa::kAvx2);

}  // namespace moesaic::internal
