// Weights and activations as the CUDA kernels take them. Plain: nvcc cannot compile the headers of
// fmt, which kernels/cpu/kernels.h includes.
//
// A matrix has the layout of the CPU's PackedMatrix (kernels/cpu/kernels.h), byte for byte: an
// expert is copied to the device as it lies in host memory and can be computed at either end. Its
// pairs of inputs are the operand registers of the tensor cores, so nothing is repacked; see
// docs/cuda.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic::cuda {

enum class Weights : uint8_t { kBf16, kInt8, kInt4 };

constexpr int64_t kPanelOutputs = 16;    // outputs of one panel
constexpr int64_t kGroupInputs = 128;    // that share a scale, of integer weights
constexpr int64_t kSubgroupInputs = 32;  // that share a multiplier of it, of int4 weights

// Rows of bf16 activations are zero-padded to this many elements, 16-byte aligned.
constexpr int64_t ActivationStride(int64_t k) { return (k + 31) / 32 * 32; }

constexpr int64_t PanelBytes(Weights type, int64_t k) {
  const int64_t groups = (k + kGroupInputs - 1) / kGroupInputs;
  const int64_t subgroups = (k + kSubgroupInputs - 1) / kSubgroupInputs;
  switch (type) {
    case Weights::kBf16:
      return (k + 1) / 2 * 64;
    case Weights::kInt8:
      return (subgroups * 8 + (groups + 1) / 2) * 64;
    case Weights::kInt4:
      return (subgroups * 4 + groups + (groups + 1) / 2) * 64;
  }
  return 0;
}

}  // namespace moesaic::cuda
