// Products of activation rows with packed weights on a GPU: of one matrix, or of many experts in
// one launch, each with the rows that were routed to it. Every pointer is the device's; a call
// queues a kernel and returns.
//
// Numerics. Activations are bf16, weights bf16, mxfp4 (exact as bf16), or integers or fp8 values
// times a scale (exact: the values go into the product, scales are applied to the sum of a group),
// sums f32. kMatrix has one order of
// summation per output, whatever the other rows and their number: a row's bits depend on nothing
// else. kVector has another order; it is for few rows, and for `--numerics fast` (architecture,
// rule 1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/launch_result.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/stream_handle.h"

namespace moesaic::cuda {

enum class ProductPath : uint8_t {
  kMatrix,  // tensor cores
  kVector,  // a row at a time, every thread reading 16 bytes of weights at once
};

// y[r, :] = x[r, :] w^T, r being a row of group g when offsets[g] <= r < offsets[g + 1], with
// w = weights[g] [n, k].
struct ProductArgs {
  const uint16_t* x = nullptr;      // bf16 [.., ActivationStride(k)]
  const int32_t* x_rows = nullptr;  // [rows] row of x of each row; null: 0, 1, 2, ...
  int64_t rows = 0;  // of all groups together, at most; offsets[groups] says how many
  int64_t groups = 1;
  const int32_t* offsets = nullptr;           // [groups + 1]; null: one group of `rows` rows
  const std::byte* const* weights = nullptr;  // [groups] packed matrices; those of empty groups
                                              // are not looked at
  const std::byte* matrix = nullptr;          // of a single group, instead of `weights`
  Weights type = Weights::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  // Added to the rows of group g: bias[bias_rows[g], :].
  const float* bias = nullptr;         // [.., n]; null: nothing
  const int32_t* bias_rows = nullptr;  // [groups]; null: 0, 1, 2, ...
  float* y = nullptr;                  // [.., n]
  const int32_t* y_rows = nullptr;     // [rows] row of y of each row; null: 0, 1, 2, ...
  bool accumulate = false;             // y += instead of y =
  // Another product of the same rows with matrices of the same type and shape, by the same launch;
  // not with `accumulate`.
  const std::byte* const* second_weights = nullptr;
  const std::byte* second_matrix = nullptr;
  const float* second_bias = nullptr;
  float* second_y = nullptr;  // null: there is none
};
LaunchResult Product(const ProductArgs& args, ProductPath path, StreamHandle stream);

// Loads all of these kernels (LoadKernels, kernels.h).
LaunchResult LoadProductKernels();

}  // namespace moesaic::cuda
