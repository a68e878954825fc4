#include "kernels/cuda/internal/all_kernels.h"

namespace moesaic::cuda {

const Kernels* CompiledKernels() { return &kLinkedKernels; }

}  // namespace moesaic::cuda
