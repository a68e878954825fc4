// Sums of byte columns: the reference.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

void AddColumns(const uint8_t* const* columns, const uint8_t* weights, int64_t num_columns,
                int shift, uint32_t* scores, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t sum = 0;
    for (int64_t c = 0; c < num_columns; ++c) {
      sum += static_cast<uint32_t>(weights[c]) * columns[c][i];
    }
    scores[i] += sum << shift;
  }
}

int64_t FindAbove(const uint32_t* scores, const float* scales, int64_t begin, int64_t n,
                  float threshold) {
  for (int64_t i = begin; i < n; ++i) {
    if (static_cast<float>(static_cast<int32_t>(scores[i])) * scales[i] > threshold) return i;
  }
  return n;
}

}  // namespace
}  // namespace moesaic
