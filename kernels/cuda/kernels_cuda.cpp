#include "kernels/cuda/internal/all_kernels.h"

namespace moesaic::cuda {

const Kernels* CompiledKernels() { return &kLinkedKernels; }

LaunchResult LoadKernels() {
  for (const auto load :
       {LoadAttentionKernels, LoadProductKernels, LoadRoutingKernels, LoadRowKernels}) {
    if (const LaunchResult result = load(); !result.ok()) return result;
  }
  return {};
}

}  // namespace moesaic::cuda
