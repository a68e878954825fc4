// Packed weights as the rows of their matrix, for libraries of matrix products, which know no
// panels (gemm.h). Every pointer is the device's; a call queues a kernel and returns.
//
// Numerics: bf16 weights stay what they are, integer ones (level times scale) are rounded to bf16,
// which is finer than their own steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/launch_result.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/stream_handle.h"

namespace moesaic::cuda {

// rows[o, i] = w[first + o, i], of a packed w [.., k] with `first` + `outputs` outputs or more.
struct UnpackArgs {
  const std::byte* matrix = nullptr;
  Weights type = Weights::kBf16;
  int64_t k = 0;
  int64_t first = 0;  // a multiple of kPanelOutputs
  int64_t outputs = 0;
  uint16_t* rows = nullptr;  // bf16 [outputs, ActivationStride(k)], zero behind k
};
LaunchResult UnpackRows(const UnpackArgs& args, StreamHandle stream);

// Loads all of these kernels (LoadKernels, kernels.h).
LaunchResult LoadUnpackKernels();

}  // namespace moesaic::cuda
