// How the workspace of a Gemm is shared: first the library's, then weights as rows. Internal to
// kernels/cuda.
#pragma once

#include <cstdint>

#include "kernels/cuda/packed_weights.h"

namespace moesaic::cuda {

// What cuBLAS is told to take on GPUs of compute capability 9.0 (cuBLAS documentation,
// cublasSetWorkspace); older ones want less.
constexpr uint64_t kCublasBytes = uint64_t{32} << 20;

// Of weights as rows. A matrix of the dense part, other than the head, is seldom larger.
constexpr uint64_t kMostUnpackedBytes = uint64_t{64} << 20;

constexpr uint64_t GemmRowBytes(int64_t k) {
  return static_cast<uint64_t>(ActivationStride(k)) * sizeof(uint16_t);
}

}  // namespace moesaic::cuda
