#include "tracer/expert_activation_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/check.h"

namespace moesaic {
namespace {

uint32_t SaturatingAdd(uint32_t a, uint32_t b) {
  const uint32_t sum = a + b;
  return sum < a ? std::numeric_limits<uint32_t>::max() : sum;
}

void CheckSameShape(const ExpertActivationMatrix& a, const ExpertActivationMatrix& b) {
  CHECK_EQ(a.num_layers(), b.num_layers());
  CHECK_EQ(a.num_experts(), b.num_experts());
}

}  // namespace

ExpertActivationMatrix::ExpertActivationMatrix(int num_layers, int num_experts)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      counts_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_experts)),
      row_sums_(static_cast<size_t>(num_layers)) {}

void ExpertActivationMatrix::Add(int layer, int expert, uint32_t tokens) {
  CHECK_GE(layer, 0);
  CHECK_LT(layer, num_layers_);
  CHECK_GE(expert, 0);
  CHECK_LT(expert, num_experts_);
  uint32_t& cell = counts_[static_cast<size_t>(layer) * static_cast<size_t>(num_experts_) +
                           static_cast<size_t>(expert)];
  const uint32_t sum = SaturatingAdd(cell, tokens);
  row_sums_[static_cast<size_t>(layer)] += sum - cell;
  cell = sum;
}

ExpertActivationMatrix& ExpertActivationMatrix::operator+=(const ExpertActivationMatrix& other) {
  CheckSameShape(*this, other);
  for (int layer = 0; layer < num_layers_; ++layer) {
    if (other.row_sum(layer) == 0) continue;
    uint32_t* row = counts_.data() + static_cast<size_t>(layer) * static_cast<size_t>(num_experts_);
    const std::span<const uint32_t> added = other.Row(layer);
    uint64_t sum = 0;
    for (size_t e = 0; e < added.size(); ++e) {
      row[e] = SaturatingAdd(row[e], added[e]);
      sum += row[e];
    }
    row_sums_[static_cast<size_t>(layer)] = sum;
  }
  return *this;
}

ExpertActivationMatrix& ExpertActivationMatrix::operator-=(const ExpertActivationMatrix& other) {
  CheckSameShape(*this, other);
  for (int layer = 0; layer < num_layers_; ++layer) {
    if (other.row_sum(layer) == 0) continue;
    uint32_t* row = counts_.data() + static_cast<size_t>(layer) * static_cast<size_t>(num_experts_);
    const std::span<const uint32_t> taken = other.Row(layer);
    for (size_t e = 0; e < taken.size(); ++e) {
      CHECK_GE(row[e], taken[e]);
      row[e] -= taken[e];
    }
    row_sums_[static_cast<size_t>(layer)] -= other.row_sum(layer);
  }
  return *this;
}

void ExpertActivationMatrix::Clear() {
  std::fill(counts_.begin(), counts_.end(), 0u);
  std::fill(row_sums_.begin(), row_sums_.end(), uint64_t{0});
}

std::span<const uint32_t> ExpertActivationMatrix::Row(int layer) const {
  CHECK_GE(layer, 0);
  CHECK_LT(layer, num_layers_);
  return {counts_.data() + static_cast<size_t>(layer) * static_cast<size_t>(num_experts_),
          static_cast<size_t>(num_experts_)};
}

uint64_t ExpertActivationMatrix::total() const {
  uint64_t total = 0;
  for (const uint64_t sum : row_sums_) total += sum;
  return total;
}

int ExpertActivationMatrix::distinct(int layer) const {
  const std::span<const uint32_t> row = Row(layer);
  return static_cast<int>(
      std::count_if(row.begin(), row.end(), [](uint32_t count) { return count > 0; }));
}

double CosineSimilarity(const ExpertActivationMatrix& a, const ExpertActivationMatrix& b,
                        int num_layers) {
  CheckSameShape(a, b);
  CHECK_GE(num_layers, 0);
  CHECK_LE(num_layers, a.num_layers());
  double dot = 0;
  double norm_a = 0;
  double norm_b = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    const std::span<const uint32_t> x = a.Row(layer);
    const std::span<const uint32_t> y = b.Row(layer);
    for (size_t e = 0; e < x.size(); ++e) {
      dot += static_cast<double>(x[e]) * y[e];
      norm_a += static_cast<double>(x[e]) * x[e];
      norm_b += static_cast<double>(y[e]) * y[e];
    }
  }
  return norm_a == 0 || norm_b == 0 ? 0 : dot / std::sqrt(norm_a * norm_b);
}

double CosineSimilarity(const ExpertActivationMatrix& a, const ExpertActivationMatrix& b) {
  return CosineSimilarity(a, b, a.num_layers());
}

}  // namespace moesaic
