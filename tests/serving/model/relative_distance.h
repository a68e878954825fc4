// How far logits are from others, as a share of these.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "core/base/check.h"

namespace moesaic {

// |a - b| / |b|, Euclidean.
inline double RelativeDistance(std::span<const float> a, std::span<const float> b) {
  CHECK_EQ(a.size(), b.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    error += difference * difference;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace moesaic
