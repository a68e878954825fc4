// Gemm: products of many rows with a dense matrix by a library, in the place of our own kernels
// (products.h): cuBLAS, in builds that found its header. The library is loaded when it is asked
// for: the program starts without it.
//
// Numerics: the class of products.h, except that how a sum is ordered is the library's choice, by
// the number of rows among other things, and integer weights are rounded to bf16. So a row's bits
// depend on its company: `--numerics fast` (architecture, rule 1).
//
// Owned by whoever owns the stream that it was made for. Thread contract: one caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/device/device_buffer.h"
#include "core/device/stream.h"
#include "kernels/cuda/products.h"

namespace moesaic::cuda {

class Gemm {
 public:
  // Products of fewer rows are for our own kernels, which read packed weights as they lie.
  static constexpr int64_t kLeastRows = 64;

  virtual ~Gemm() = default;
  // Queues y = x w^T, or y += of it, of one matrix and all rows as they lie (no groups, no x_rows,
  // no y_rows). `stream` is the handle of the stream that this was made for, which may be
  // recording.
  virtual LaunchResult Product(const ProductArgs& args, StreamHandle stream) = 0;
};

// What a Gemm takes of the device for matrices of up to n outputs and k inputs: the library's own
// workspace, and room for weights as rows, of which larger matrices are done in pieces.
uint64_t GemmWorkspaceBytes(int64_t n, int64_t k);

// Why MakeCublas can make none; empty: the library is there.
std::string WhyNoCublas();

// For products on `stream`, of a CUDA device, with a workspace of GemmWorkspaceBytes there. The
// library takes no memory of the device but this and its context. Both outlive it. Throws
// Error(kUnsupported) in a build without cuBLAS, kNotFound when the library cannot be loaded, and
// kUnavailable with the library's status when it does not want this GPU.
std::unique_ptr<Gemm> MakeCublas(Stream& stream, const DeviceSpan& workspace);

}  // namespace moesaic::cuda
