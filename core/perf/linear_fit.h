// FitLinear: what a time depends on, by least squares: t = sum of c_j x_j with no c_j below zero.
//
// A pure function. Residuals are taken relative to the measured time, so that short runs count as
// much as long ones; points far off the others (a neighbour that took the processor) are left out
// of a second fit.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace moesaic {

struct LinearFit {
  std::vector<double> coefficients;  // one per term, at least zero
  double relative_error = 0;         // median of |fitted / measured - 1| over the points kept
  size_t points = 0;                 // that were kept
  size_t outliers = 0;               // that were left out
};

// terms[i]: the x_j of point i, a constant term as a 1; values[i] > 0: what was measured. CHECKs
// that all points have as many terms and that there is at least one. Terms that the points cannot
// tell apart, or that would be negative, get 0.
LinearFit FitLinear(std::span<const std::vector<double>> terms, std::span<const double> values);

}  // namespace moesaic
