#include "serving/plan/peak_kernels.h"

namespace moesaic {

// Four floats in GCC's portable vector type: SSE2 or NEON, whichever the compiler's target has.
float PeakBaselineF32(int64_t iterations) {
  typedef float Vector __attribute__((vector_size(16)));
  Vector sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector factor = Vector{} + 0.5f;
  const Vector term = Vector{} + 1.0f;
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < kPeakChains; ++i) sums[i] = sums[i] * factor + term;
  }
  float total = 0;
  for (int i = 0; i < kPeakChains; ++i) total += sums[i][0];
  return total;
}

}  // namespace moesaic
