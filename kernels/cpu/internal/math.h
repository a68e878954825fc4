// exp, silu, log and row reductions on Vec16; the including source has defined Vec16.
//
// Every operation is an IEEE one in a fixed order, so all instruction sets give the same bits. NaN
// in gives NaN out (which NaN is not promised).
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

// Relative error below 1.5e-7 (tests/kernels/math_test.cpp). Results below 2^-126 are 0; above
// FLT_MAX, +inf.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, exp(x) = 2^n exp(r). Adding 1.5 * 2^23 rounds x / ln 2 to
// the integer n and leaves n in the low bits. The Taylor series to r^7 leaves r^8 / 8! < 5.2e-9.
MOESAIC_INLINE Vec16 Exp(Vec16 x) {
  const Vec16 magic = Set(12582912.0f);
  const Vec16 t = Fma(x, Set(1.44269504088896341f), magic);
  const Vec16 n = Sub(t, magic);
  // ln 2 in two floats: 0.693147182464599609375 - 1.90465429995776804e-9.
  Vec16 r = Fma(n, Set(-0.693147182464599609375f), x);
  r = Fma(n, Set(1.90465429995776804e-9f), r);
  Vec16 p = Set(1.0f / 5040.0f);
  p = Fma(p, r, Set(1.0f / 720.0f));
  p = Fma(p, r, Set(1.0f / 120.0f));
  p = Fma(p, r, Set(1.0f / 24.0f));
  p = Fma(p, r, Set(1.0f / 6.0f));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  Vec16 y = AddShifted<23>(p, t);
  y = SelectLess(x, Set(-87.33654f), Zero(), y);         // ln(2^-126) = -87.336545
  y = SelectLess(Set(88.72283f), x, Set(kInfinity), y);  // ln(FLT_MAX) = 88.722839
  return SelectNan(x, x, y);
}

// x / (1 + exp(-x)); -inf gives NaN.
MOESAIC_INLINE Vec16 Silu(Vec16 x) { return Div(x, Add(Set(1.0f), Exp(Sub(Zero(), x)))); }

// GatedActivation, clamped. Min and Max return their second operand where one is NaN, so that a
// NaN stays one.
MOESAIC_INLINE Vec16 ClampedSwiglu(Vec16 gate, Vec16 up, float alpha, float limit) {
  const Vec16 g = Min(Set(limit), gate);
  const Vec16 u = Max(Set(-limit), Min(Set(limit), up));
  const Vec16 sigmoid = Div(Set(1.0f), Add(Set(1.0f), Exp(Sub(Zero(), Mul(Set(alpha), g)))));
  return Mul(Add(u, Set(1.0f)), Mul(g, sigmoid));
}

// Natural logarithm of x >= 0 in double, far below a float's rounding error. One scalar per row, so
// it need not be fast: x = m 2^e, log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <= 0.172; the
// series to s^17.
inline double Log(double x) {
  if (!(x > 0.0) || x == static_cast<double>(kInfinity))
    return x == 0.0 ? -static_cast<double>(kInfinity) : x;
  int64_t bits = __builtin_bit_cast(int64_t, x);
  int64_t exponent = (bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffff) | 0x3ff0000000000000;
  double m = __builtin_bit_cast(double, bits);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double series = 0.0;
  for (int i = 17; i >= 1; i -= 2) series = series * s2 + 1.0 / i;
  return 2.0 * s * series + static_cast<double>(exponent) * 0.69314718055994531;
}

// The largest element that is a number, -inf when there is none.
inline float MaxOfRow(const float* x, int64_t n) {
  Vec16 max = Set(-kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max = Max(Load(x + i), max);
  if (i < n) max = Max(KeepRange(LoadFirst(x + i, n - i), 0, n - i, max), max);
  return MaxLanes(max);
}

// What is subtracted before exp: the maximum, or 0 when it is infinite (inf - inf would be NaN).
MOESAIC_INLINE float ExpShift(float max) { return max - max == 0.0f ? max : 0.0f; }

// Sum of exp(x - shift) in 16 accumulators; also writes the terms when `out` is not null.
inline float SumExp(const float* x, int64_t n, float shift, float* out) {
  const Vec16 shifts = Set(shift);
  Vec16 sum = Zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec16 e = Exp(Sub(Load(x + i), shifts));
    sum = Add(sum, e);
    if (out != nullptr) Store(out + i, e);
  }
  if (i < n) {
    const Vec16 e = KeepRange(Exp(Sub(LoadFirst(x + i, n - i), shifts)), 0, n - i, Zero());
    sum = Add(sum, e);
    if (out != nullptr) StoreFirst(out + i, n - i, e);
  }
  return SumLanes(sum);
}

}  // namespace
}  // namespace moesaic
