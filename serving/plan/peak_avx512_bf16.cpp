#include <immintrin.h>

#include "serving/plan/peak_kernels.h"

namespace moesaic {

float PeakAvx512Bf16(int64_t iterations) {
  __m512 sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 ones = _mm512_set1_ps(1.0f);
  const __m512bh a = _mm512_cvtne2ps_pbh(ones, ones);
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.001f), ones);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  }
  float total = 0;
  for (int i = 0; i < kPeakChains; ++i) total += _mm512_cvtss_f32(sums[i]);
  return total;
}

}  // namespace moesaic
