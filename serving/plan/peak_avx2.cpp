#include <immintrin.h>

#include "serving/plan/peak_kernels.h"

namespace moesaic {

float PeakAvx2F32(int64_t iterations) {
  __m256 sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.5f);
  const __m256 term = _mm256_set1_ps(1.0f);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  float total = 0;
  for (int i = 0; i < kPeakChains; ++i) total += _mm256_cvtss_f32(sums[i]);
  return total;
}

}  // namespace moesaic
