#include "serving/model/host_rows.h"

#include "kernels/cpu/moe.h"

namespace moesaic {
namespace {

constexpr int64_t kRowsPerTask = 8;

}  // namespace

AlignedBuffer ZeroedFloats(int64_t count) {
  AlignedBuffer buffer(static_cast<size_t>(count) * sizeof(float));
  buffer.Zero();
  return buffer;
}

int64_t WidestActivationRow(const CpuKernels& kernels, int64_t n) {
  return std::max(ActivationRowBytes(ActivationTypeOf(kernels.numerics, WeightType::kBf16), n),
                  ActivationRowBytes(ActivationType::kInt8Sums, n));
}

int64_t WidestActivationRow(const ModelConfig& config, const CpuKernels& kernels, int64_t n) {
  const int64_t widest = WidestActivationRow(kernels, n);
  const TensorPlan& tensors = config.tensors;
  const bool floats = tensors.HasMxfp4Experts() || tensors.HasPackedInt4();
  if (!floats && config.gguf_types.empty()) return widest;
  return std::max(widest, ActivationRowBytes(ActivationType::kF32, n));
}

void ForRows(ThreadPool& pool, RowRange rows, FunctionRef<void(int64_t row)> body) {
  const int64_t tasks = (rows.count() + kRowsPerTask - 1) / kRowsPerTask;
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t end = std::min(rows.end, rows.begin + (task + 1) * kRowsPerTask);
    for (int64_t row = rows.begin + task * kRowsPerTask; row < end; ++row) body(row);
  });
}

void MultiplyRows(ThreadPool& pool, const CpuKernels& kernels, const ActivatedRows& x, int64_t rows,
                  const PackedMatrix& w, float* y, int64_t y_stride, const float* bias) {
  MatmulArgs product;
  product.x = x.data;
  product.x_stride_bytes = x.stride_bytes;
  product.m = rows;
  product.w = w;
  product.bias = bias;
  product.y = y;
  product.y_stride = y_stride;
  ParallelMatmul(pool, kernels, product);
}

void MultiplyRows(ThreadPool& pool, const CpuKernels& kernels, const ActivatedRows& x, int64_t rows,
                  const MatrixRows& w, float* y, int64_t y_stride, const float* bias) {
  for (const PackedMatrix& matrix : w.matrices) {
    MultiplyRows(pool, kernels, x, rows, matrix, y, y_stride, bias);
    y += matrix.n;
    if (bias != nullptr) bias += matrix.n;
  }
}

HostActivations::HostActivations(const CpuKernels& kernels, int64_t rows, int64_t widest)
    : kernels_(kernels), memory_(static_cast<size_t>(Bytes(kernels, rows, widest))) {}

ActivatedRows HostActivations::Of(const float* x, int64_t stride, int64_t rows,
                                  const PackedMatrix& w, ThreadPool& pool) {
  const ActivationType type = ActivationTypeOf(kernels_.numerics, w.type);
  if (type == ActivationType::kF32) {  // the rows are what the product wants already
    return UnroundedRows(x, stride);
  }
  const int64_t row_bytes = ActivationRowBytes(type, w.k);
  ForRows(pool, {0, rows}, [&](int64_t row) {
    kernels_.prepare_activations(x + row * stride, stride, 1, w.k, type,
                                 memory_.data() + row * row_bytes, row_bytes);
  });
  return {memory_.data(), row_bytes};
}

}  // namespace moesaic
