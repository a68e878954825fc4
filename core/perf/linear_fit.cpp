#include "core/perf/linear_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

// A point is an outlier beyond so many median residuals, and never within this much.
constexpr double kOutlierResiduals = 4;
constexpr double kNeverOutlier = 0.05;
constexpr double kSingular = 1e-12;

using Points = std::span<const std::vector<double>>;

// Solves the normal equations of the terms that are in use by elimination with pivoting. Columns
// are scaled to unit length first, so that seconds per byte and seconds per call are alike. False
// when they are (nearly) dependent.
bool Solve(Points terms, std::span<const double> values, const std::vector<bool>& kept,
           const std::vector<size_t>& used, std::vector<double>& solution) {
  const size_t n = used.size();
  std::vector<double> scale(n, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!kept[i]) continue;
    for (size_t j = 0; j < n; ++j) scale[j] += std::pow(terms[i][used[j]] / values[i], 2);
  }
  for (double& s : scale) {
    if (s <= 0) return false;
    s = std::sqrt(s);
  }
  std::vector<std::vector<double>> m(n, std::vector<double>(n + 1, 0));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!kept[i]) continue;
    for (size_t r = 0; r < n; ++r) {
      const double row = terms[i][used[r]] / values[i] / scale[r];
      for (size_t c = 0; c < n; ++c) m[r][c] += row * terms[i][used[c]] / values[i] / scale[c];
      m[r][n] += row;
    }
  }
  for (size_t c = 0; c < n; ++c) {
    size_t pivot = c;
    for (size_t r = c + 1; r < n; ++r) {
      if (std::abs(m[r][c]) > std::abs(m[pivot][c])) pivot = r;
    }
    if (std::abs(m[pivot][c]) < kSingular) return false;
    std::swap(m[c], m[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == c) continue;
      const double factor = m[r][c] / m[c][c];
      for (size_t k = c; k <= n; ++k) m[r][k] -= factor * m[c][k];
    }
  }
  solution.resize(n);
  for (size_t j = 0; j < n; ++j) solution[j] = m[j][n] / m[j][j] / scale[j];
  return true;
}

// The fit over the kept points without negative coefficients: the most negative term (the last one,
// when they are dependent) leaves until none is.
std::vector<double> FitKept(Points terms, std::span<const double> values,
                            const std::vector<bool>& kept) {
  std::vector<double> coefficients(terms.front().size(), 0);
  std::vector<size_t> used(coefficients.size());
  for (size_t j = 0; j < used.size(); ++j) used[j] = j;
  std::vector<double> solution;
  while (!used.empty()) {
    if (!Solve(terms, values, kept, used, solution)) {
      used.pop_back();
      continue;
    }
    const auto least = std::min_element(solution.begin(), solution.end());
    if (*least >= 0) {
      for (size_t j = 0; j < used.size(); ++j) coefficients[used[j]] = solution[j];
      break;
    }
    used.erase(used.begin() + (least - solution.begin()));
  }
  return coefficients;
}

double RelativeResidual(const std::vector<double>& terms, double value,
                        const std::vector<double>& coefficients) {
  double fitted = 0;
  for (size_t j = 0; j < terms.size(); ++j) fitted += terms[j] * coefficients[j];
  return std::abs(fitted / value - 1);
}

double MedianResidual(Points terms, std::span<const double> values, const std::vector<bool>& kept,
                      const std::vector<double>& coefficients) {
  std::vector<double> residuals;
  for (size_t i = 0; i < values.size(); ++i) {
    if (kept[i]) residuals.push_back(RelativeResidual(terms[i], values[i], coefficients));
  }
  const auto middle = residuals.begin() + static_cast<std::ptrdiff_t>(residuals.size() / 2);
  std::nth_element(residuals.begin(), middle, residuals.end());
  return *middle;
}

}  // namespace

LinearFit FitLinear(std::span<const std::vector<double>> terms, std::span<const double> values) {
  CHECK(!values.empty());
  CHECK_EQ(terms.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK_EQ(terms[i].size(), terms.front().size());
    CHECK_GT(values[i], 0);
  }
  std::vector<bool> kept(values.size(), true);
  LinearFit fit;
  fit.coefficients = FitKept(terms, values, kept);
  const double far = std::max(
      kNeverOutlier, kOutlierResiduals * MedianResidual(terms, values, kept, fit.coefficients));
  // As many points as terms have to stay, else the fit says nothing.
  const size_t least = std::min(values.size(), terms.front().size() + 1);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values.size() - fit.outliers <= least) break;
    if (RelativeResidual(terms[i], values[i], fit.coefficients) <= far) continue;
    kept[i] = false;
    ++fit.outliers;
  }
  if (fit.outliers > 0) fit.coefficients = FitKept(terms, values, kept);
  fit.points = values.size() - fit.outliers;
  fit.relative_error = MedianResidual(terms, values, kept, fit.coefficients);
  return fit;
}

}  // namespace moesaic
