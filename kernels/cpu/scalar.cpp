// The scalar kernels: the reference, and the fallback of any CPU. See internal/common.h for why
// this file includes no more than it does.
#include "kernels/cpu/internal/vec_scalar.h"
//
#include "kernels/cpu/internal/coded_scalar.h"
#include "kernels/cpu/internal/columns_scalar.h"
#include "kernels/cpu/internal/lines_scalar.h"
//
#include "kernels/cpu/internal/f32_table.h"
#include "kernels/cpu/internal/tables.h"

namespace moesaic::internal {

constinit const CpuKernels kScalarKernels = F32Table(Isa::kScalar);

}  // namespace moesaic::internal
