#include "kernels/cuda/internal/all_kernels.h"
#include "kernels/cuda/unpack.h"

namespace moesaic::cuda {

const Kernels* CompiledKernels() { return &kLinkedKernels; }

LaunchResult LoadKernels() {
  for (const auto load : {LoadAttentionKernels, LoadProductKernels, LoadRoutingKernels,
                          LoadRowKernels, LoadUnpackKernels}) {
    if (const LaunchResult result = load(); !result.ok()) return result;
  }
  return {};
}

LaunchResult FetchFromHost(void* to, const void* from, uint64_t bytes, StreamHandle stream) {
  return Fetch(to, from, bytes, stream);
}

}  // namespace moesaic::cuda
