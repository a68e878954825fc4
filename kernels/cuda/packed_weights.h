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

// What products take; the last three are of experts alone (HoldsRows).
enum class Weights : uint8_t { kBf16, kInt8, kInt4, kMxfp4, kFp8, kW4A16 };

// Whether the embedding and libraries, too, read matrices of the type.
constexpr bool HoldsRows(Weights type) { return type <= Weights::kInt4; }

constexpr int64_t kPanelOutputs = 16;    // outputs of one panel
constexpr int64_t kGroupInputs = 128;    // that share a scale, of int8, int4 and fp8 weights
// That share a multiplier of int4 weights, an exponent of mxfp4, a scale of w4a16.
constexpr int64_t kSubgroupInputs = 32;

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
    case Weights::kMxfp4:
      return (subgroups * 4 + groups) * 64;
    case Weights::kFp8:
      return (groups + (k + 3) / 4) * 64;
    case Weights::kW4A16:
      return (subgroups * 4 + (subgroups + 1) / 2) * 64;
  }
  return 0;
}

}  // namespace moesaic::cuda
