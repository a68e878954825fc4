// oneDNN's dense matrix product behind a small interface, and the probe that says whether a product
// may be used under the exact contract.
//
// Only tests and benches link this: the engine's products are kernels/cpu (docs/benchmarks.md
// compares the two).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/function_ref.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// y = x w^T for one weight matrix [n, k]. x and w are both bf16 or both f32, y is f32, sums are
// f32. Not thread-safe. Throws Error(kUnsupported) when oneDNN has no implementation on this CPU.
class OneDnnMatmul {
 public:
  // `weights`: row-major [n, k] of `type`; copied.
  OneDnnMatmul(WeightType type, int64_t n, int64_t k, const void* weights);
  ~OneDnnMatmul();
  OneDnnMatmul(const OneDnnMatmul&) = delete;
  OneDnnMatmul& operator=(const OneDnnMatmul&) = delete;

  // Builds the product of `m` rows, with the weights in the layout that oneDNN likes for it.
  void Prepare(int64_t m);
  // x: [m, k] without gaps; y: [m, n]. Prepares when that has not been done.
  void Run(int64_t m, const void* x, float* y);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether this oneDNN has products of `type` on this CPU: version 2.6 has none of bf16 for AVX2.
bool OneDnnSupports(WeightType type);

// Threads of oneDNN's products that the calling thread starts. No effect on a oneDNN built without
// OpenMP.
void SetOneDnnThreads(int threads);

// multiply(m, x, y): y [m, n] = the product of x [m, k] with some fixed matrix.
using DenseProduct = FunctionRef<void(int64_t m, const float* x, float* y)>;

// Whether a row's bits are the same in every place of products of several heights (1 to 512 rows):
// what the exact contract asks of a library before its product may be used. A machine's answer:
// another CPU, another version or other sizes may answer differently.
bool RowInvariant(int64_t n, int64_t k, DenseProduct multiply);
// The same of oneDNN's product with a random [n, k] matrix. Throws as OneDnnMatmul does.
bool OneDnnRowInvariant(WeightType type, int64_t n, int64_t k);

}  // namespace moesaic
