#include <immintrin.h>

#include "serving/plan/peak_kernels.h"

namespace moesaic {

float PeakAvx512F32(int64_t iterations) {
  __m512 sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.5f);
  const __m512 term = _mm512_set1_ps(1.0f);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  float total = 0;
  for (int i = 0; i < kPeakChains; ++i) total += _mm512_cvtss_f32(sums[i]);
  return total;
}

}  // namespace moesaic
