// Rows of 16-bit weights, sigmoid, dot and decayed_log against double precision, on every
// instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;

class RegressionTest : public ::testing::TestWithParam<Isa> {
 protected:
  std::vector<std::vector<int16_t>> RandomRows(int64_t count, int64_t n) {
    std::vector<std::vector<int16_t>> rows(static_cast<size_t>(count));
    for (auto& row : rows) {
      for (int64_t j = 0; j < n; ++j)
        row.push_back(static_cast<int16_t>(random_.Uniform(-32768, 32767)));
    }
    return rows;
  }

  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

INSTANTIATE_TEST_SUITE_P(Isas, RegressionTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

TEST_P(RegressionTest, AddWeightRowsSumsScaledRows) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const int64_t n : {16, 48, 128, 1024}) {
    for (const int64_t count : {0, 1, 2, 9}) {
      const auto data = RandomRows(count, n);
      std::vector<const int16_t*> rows;
      for (const auto& row : data) rows.push_back(row.data());
      const std::vector<float> scales = random_.Normals(count);
      std::vector<float> y = random_.Normals(n);
      std::vector<double> expected(y.begin(), y.end());
      for (size_t r = 0; r < data.size(); ++r) {
        for (size_t j = 0; j < expected.size(); ++j) {
          expected[j] += static_cast<double>(scales[r]) * data[r][j] / kWeightSteps;
        }
      }
      kernels_.add_weight_rows(rows.data(), scales.data(), count, y.data(), n);
      for (size_t j = 0; j < y.size(); ++j) {
        ASSERT_NEAR(static_cast<double>(y[j]), expected[j], 3e-5) << count << " rows of " << n;
      }
    }
  }
}

TEST_P(RegressionTest, StepWeightRowsRoundsAndSaturates) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const int64_t n : {16, 48, 128}) {
    for (const int64_t count : {1, 2, 9}) {
      auto data = RandomRows(count, n);
      std::vector<int16_t*> rows;
      for (auto& row : data) rows.push_back(row.data());
      const std::vector<float> steps = random_.Normals(count, 2);
      const std::vector<float> error = random_.Normals(n, 2);
      const auto before = data;
      kernels_.step_weight_rows(rows.data(), steps.data(), count, error.data(), n);
      bool saturated = false;
      for (size_t r = 0; r < data.size(); ++r) {
        for (size_t j = 0; j < error.size(); ++j) {
          const double exact = before[r][j] - static_cast<double>(steps[r]) *
                                                  static_cast<double>(kWeightSteps) *
                                                  static_cast<double>(error[j]);
          const double expected = std::clamp(exact, -32768.0, 32767.0);
          saturated = saturated || expected != exact;
          // Half a step, and what a float of this size is off by.
          ASSERT_NEAR(data[r][j], expected, 0.52) << r << " " << j;
        }
      }
      EXPECT_TRUE(saturated || count == 1);
    }
  }
}

TEST_P(RegressionTest, Sigmoid) {
  std::vector<float> x;
  for (int i = -160; i < 160; ++i) x.push_back(0.7f * static_cast<float>(i));
  const std::vector<float> in = x;
  kernels_.sigmoid(x.data(), static_cast<int64_t>(x.size()), x.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 1 / (1 + std::exp(-static_cast<double>(in[i])));
    ASSERT_NEAR(static_cast<double>(x[i]), expected, 1e-6 * expected + 1e-37) << in[i];
  }
}

// Bits do not depend on how many there are, and nothing behind them is written.
TEST_P(RegressionTest, SigmoidOfAnyLength) {
  const std::vector<float> x = random_.Normals(64, 4);
  std::vector<float> whole(x.size());
  kernels_.sigmoid(x.data(), 64, whole.data());
  for (int64_t n = 1; n < 64; ++n) {
    std::vector<float> out(static_cast<size_t>(n) + 1, 777.0f);
    kernels_.sigmoid(x.data(), n, out.data());
    ASSERT_EQ(out.back(), 777.0f) << n;
    out.pop_back();
    ASSERT_TRUE(std::equal(out.begin(), out.end(), whole.begin())) << n;
  }
}

TEST_P(RegressionTest, Dot) {
  for (const int64_t n : {16, 128, 160}) {
    const std::vector<float> x = random_.Normals(n);
    const std::vector<float> y = random_.Normals(n);
    double expected = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      expected += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    }
    EXPECT_NEAR(static_cast<double>(kernels_.dot(x.data(), y.data(), n)), expected, 1e-4);
  }
}

TEST_P(RegressionTest, DecayedLog) {
  const int64_t n = 64;
  std::vector<float> shares;
  std::vector<float> now;
  for (int64_t j = 0; j < n; ++j) {
    shares.push_back(std::pow(1.3f, static_cast<float>(j - 32)));
    now.push_back(j % 3 == 0 ? 1.0f : 0.0f);
  }
  const std::vector<float> before = shares;
  std::vector<float> logs(static_cast<size_t>(n));
  kernels_.decayed_log(now.data(), 0.9f, 0.02f, n, shares.data(), logs.data());
  for (size_t j = 0; j < shares.size(); ++j) {
    const double share = 0.9 * static_cast<double>(before[j]) + 0.1 * static_cast<double>(now[j]);
    ASSERT_NEAR(static_cast<double>(shares[j]), share, 1e-6 * share);
    ASSERT_NEAR(static_cast<double>(logs[j]), std::log(share + 0.02), 2e-5);
  }
}

TEST_P(RegressionTest, SameBitsAsTheReference) {
  SCOPED_TRACE(testing_util::TestSeed());
  const CpuKernels& reference = KernelsFor(Isa::kScalar);
  const int64_t n = 128;
  const std::vector<float> x = random_.Normals(n, 4);
  const std::vector<float> error = random_.Normals(n);
  auto data = RandomRows(3, n);
  auto data_reference = data;
  const std::vector<float> scales = random_.Normals(3, 0.1f);
  const auto run = [&](const CpuKernels& kernels, std::vector<std::vector<int16_t>>& weights) {
    std::vector<int16_t*> rows;
    for (auto& row : weights) rows.push_back(row.data());
    kernels.step_weight_rows(rows.data(), scales.data(), 3, error.data(), n);
    std::vector<float> y = x;
    kernels.add_weight_rows(rows.data(), scales.data(), 3, y.data(), n);
    kernels.sigmoid(y.data(), n, y.data());
    std::vector<float> logs(static_cast<size_t>(n));
    kernels.decayed_log(y.data(), 0.5f, 0.02f, n, y.data(), logs.data());
    logs.push_back(kernels.dot(y.data(), x.data(), n));
    return logs;
  };
  EXPECT_EQ(run(kernels_, data), run(reference, data_reference));
  EXPECT_EQ(data, data_reference);
}

}  // namespace
}  // namespace moesaic
