#include <immintrin.h>

#include "serving/plan/peak_kernels.h"

namespace moesaic {

float PeakAvx512VnniInt8(int64_t iterations) {
  __m512i sums[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi8(1);
  const __m512i b = _mm512_set1_epi8(-2);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < kPeakChains; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
  }
  __m512i total = _mm512_setzero_si512();
  for (int i = 0; i < kPeakChains; ++i) total = _mm512_add_epi32(total, sums[i]);
  return static_cast<float>(_mm512_reduce_add_epi32(total));
}

}  // namespace moesaic
