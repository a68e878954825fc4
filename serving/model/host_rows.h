// Rows of activations in the host's memory: f32, and as products with packed weights want them.
//
// Functions of their arguments; a HostActivations is used by one thread and the pool that it is
// given.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/aligned_buffer.h"
#include "core/base/function_ref.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/forward_batch.h"
#include "serving/model/matrix_rows.h"

namespace moesaic {

// Floats of a row of n values with the padding that products want.
inline int64_t PaddedFloats(int64_t n) {
  return ActivationRowBytes(ActivationType::kF32, n) / static_cast<int64_t>(sizeof(float));
}

AlignedBuffer ZeroedFloats(int64_t count);

// Bytes of a row of n activations, for weights of any type.
int64_t WidestActivationRow(const CpuKernels& kernels, int64_t n);

// The same, also of a type that is multiplied with f32 rows in all classes, where the model can
// have it.
int64_t WidestActivationRow(const ModelConfig& config, const CpuKernels& kernels, int64_t n);

// A norm or a rotation is too short to be a task of its own: some rows are one.
void ForRows(ThreadPool& pool, RowRange rows, FunctionRef<void(int64_t row)> body);

// Rows as a product takes them.
struct ActivatedRows {
  const std::byte* data = nullptr;
  int64_t stride_bytes = 0;
};

// y = x w^T + bias, its rows y_stride floats apart.
void MultiplyRows(ThreadPool& pool, const CpuKernels& kernels, const ActivatedRows& x, int64_t rows,
                  const PackedMatrix& w, float* y, int64_t y_stride, const float* bias = nullptr);

// The same with all rows of w; x is what a product with the first of its matrices takes.
void MultiplyRows(ThreadPool& pool, const CpuKernels& kernels, const ActivatedRows& x, int64_t rows,
                  const MatrixRows& w, float* y, int64_t y_stride, const float* bias = nullptr);

// f32 rows, stride floats apart, for a product that takes them as they are.
inline ActivatedRows UnroundedRows(const float* x, int64_t stride) {
  return {reinterpret_cast<const std::byte*>(x), stride * static_cast<int64_t>(sizeof(float))};
}

// Rounds rows to what a product with some weights wants, in memory of its own.
class HostActivations {
 public:
  // At most `rows` rows of at most `widest` values.
  HostActivations(const CpuKernels& kernels, int64_t rows, int64_t widest);

  static int64_t Bytes(const CpuKernels& kernels, int64_t rows, int64_t widest) {
    return rows * WidestActivationRow(kernels, widest);
  }

  // x: [rows, PaddedFloats(w.k)], stride floats apart, for a product with weights of w's type.
  // Valid until the next call, and as long as x is.
  ActivatedRows Of(const float* x, int64_t stride, int64_t rows, const PackedMatrix& w,
                   ThreadPool& pool);

 private:
  const CpuKernels& kernels_;
  AlignedBuffer memory_;
};

}  // namespace moesaic
