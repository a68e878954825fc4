#include "tests/gpu/host/host_kernels.h"

#include "kernels/cuda/internal/all_kernels.h"

namespace moesaic {

const cuda::Kernels& HostKernels() { return cuda::kLinkedKernels; }

}  // namespace moesaic
