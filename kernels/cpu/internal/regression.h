// Online logistic regression on rows of 16-bit weights (kernels.h). Included after Vec16 and
// math.h.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

// Rows lie far apart in a table larger than the caches: while one is worked on, the one after the
// next is asked for.
MOESAIC_INLINE void PrefetchWeights(const int16_t* const* rows, int64_t num_rows, int64_t row,
                                    int64_t at) {
  if (row < num_rows) __builtin_prefetch(rows[row] + at);
}

inline void AddWeightRows(const int16_t* const* rows, const float* scales, int64_t num_rows,
                          float* y, int64_t n) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const Vec16 scale = Set(scales[row] * (1.0f / kWeightSteps));
    for (int64_t i = 0; i < n; i += kLanes) {
      if (i % (2 * kLanes) == 0) PrefetchWeights(rows, num_rows, row + 1, i);
      Store(y + i, Fma(scale, LoadI16(rows[row] + i), Load(y + i)));
    }
  }
}

inline void StepWeightRows(int16_t* const* rows, const float* steps, int64_t num_rows,
                           const float* error, int64_t n) {
  for (int64_t row = 0; row < num_rows; ++row) {
    const Vec16 step = Set(-steps[row] * kWeightSteps);
    for (int64_t i = 0; i < n; i += kLanes) {
      if (i % (2 * kLanes) == 0) PrefetchWeights(rows, num_rows, row + 4, i);
      StoreI16(rows[row] + i, Fma(step, Load(error + i), LoadI16(rows[row] + i)));
    }
  }
}

// Of any length, unlike its neighbours: routers have any number of experts.
inline void Sigmoid(const float* x, int64_t n, float* y) {
  const Vec16 one = Set(1.0f);
  const auto of = [one](Vec16 v) { return Div(one, Add(one, Exp(Sub(Zero(), v)))); };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(y + i, of(Load(x + i)));
  if (i < n) StoreFirst(y + i, n - i, of(LoadFirst(x + i, n - i)));
}

inline float Dot(const float* x, const float* y, int64_t n) {
  Vec16 sum = Zero();
  for (int64_t i = 0; i < n; i += kLanes) sum = Fma(Load(x + i), Load(y + i), sum);
  return SumLanes(sum);
}

// Natural logarithm of a normal x > 0 to 1e-5: x = m 2^e with m in [1, 2), and ln m by a Chebyshev
// fit of degree 5 (tests/kernels/cpu/regression_test.cpp).
MOESAIC_INLINE Vec16 LogOfNormal(Vec16 x) {
  const Vec16 e = Exponent(x);
  const Vec16 m = AddShifted<23>(x, Sub(Set(12582912.0f), e));
  const Vec16 t = Sub(m, Set(1.5f));
  Vec16 p = Set(0.030449f);
  p = Fma(p, t, Set(-0.05545931f));
  p = Fma(p, t, Set(0.09823154f));
  p = Fma(p, t, Set(-0.22163318f));
  p = Fma(p, t, Set(0.66668367f));
  p = Fma(p, t, Set(0.40545679f));
  return Fma(e, Set(0.69314718f), p);
}

inline void DecayedLog(const float* now, float keep, float floor, int64_t n, float* shares,
                       float* logs) {
  const Vec16 kept = Set(keep);
  const Vec16 added = Set(1.0f - keep);
  const Vec16 least = Set(floor);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec16 share = Fma(kept, Load(shares + i), Mul(added, Load(now + i)));
    Store(shares + i, share);
    Store(logs + i, LogOfNormal(Add(share, least)));
  }
}

}  // namespace
}  // namespace moesaic
