#include "tests/bench/plain_attention.h"

#include <cmath>

namespace moesaic {
namespace {

float Widen(uint16_t bf16) { return __builtin_bit_cast(float, static_cast<uint32_t>(bf16) << 16); }

}  // namespace

void MOESAIC_PLAIN_ATTENTION(const uint16_t* keys, const uint16_t* values, const float* q,
                             int64_t group, int64_t context, int64_t d, float scale, float* scores,
                             float* out) {
  for (int64_t t = 0; t < context; ++t) {
    for (int64_t g = 0; g < group; ++g) {
      float score = 0.0f;
      for (int64_t i = 0; i < d; ++i) score += q[g * d + i] * Widen(keys[t * d + i]);
      scores[g * context + t] = score * scale;
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    float* p = scores + g * context;
    float max = p[0];
    for (int64_t t = 1; t < context; ++t) max = p[t] > max ? p[t] : max;
    float sum = 0.0f;
    for (int64_t t = 0; t < context; ++t) sum += p[t] = std::exp(p[t] - max);
    for (int64_t t = 0; t < context; ++t) p[t] /= sum;
  }
  for (int64_t i = 0; i < group * d; ++i) out[i] = 0.0f;
  for (int64_t t = 0; t < context; ++t) {
    for (int64_t g = 0; g < group; ++g) {
      const float p = scores[g * context + t];
      for (int64_t i = 0; i < d; ++i) out[g * d + i] += p * Widen(values[t * d + i]);
    }
  }
}

}  // namespace moesaic
