// add_columns and find_above against plain loops, on every instruction set.
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;

class ColumnsTest : public ::testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

INSTANTIATE_TEST_SUITE_P(Isas, ColumnsTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

// Weights that add up to at most kMaxColumnWeightSum, as many as asked where they fit.
std::vector<uint8_t> RandomWeights(Random& random, int64_t count) {
  std::vector<uint8_t> weights(static_cast<size_t>(count), 1);
  int64_t left = kMaxColumnWeightSum - count;
  for (uint8_t& weight : weights) {
    const int64_t more = random.Uniform(0, std::min<int64_t>(left, kMaxColumnWeight - 1));
    weight = static_cast<uint8_t>(1 + more);
    left -= more;
  }
  return weights;
}

TEST_P(ColumnsTest, AddColumnsMatchesAPlainLoop) {
  SCOPED_TRACE(testing_util::TestSeed());
  for (const int64_t n : {64, 128, 192, 256, 320, 1024, 1088}) {
    for (const int64_t count : {1, 2, 3, 8, 100, 257}) {
      std::vector<std::vector<uint8_t>> data(static_cast<size_t>(count));
      std::vector<const uint8_t*> columns;
      for (auto& column : data) {
        column.resize(static_cast<size_t>(n));
        // 255 everywhere in some: the largest sums that 16 bits must hold.
        const bool full = random_.Uniform(0, 1) == 0;
        for (uint8_t& v : column) v = full ? 255 : static_cast<uint8_t>(random_.Uniform(0, 255));
        columns.push_back(column.data());
      }
      const std::vector<uint8_t> weights = RandomWeights(random_, count);
      const int shift = static_cast<int>(random_.Uniform(0, 14));
      std::vector<uint32_t> scores(static_cast<size_t>(n));
      for (uint32_t& v : scores) v = static_cast<uint32_t>(random_.Uniform(0, 1 << 30));
      std::vector<uint32_t> expected = scores;
      for (size_t i = 0; i < expected.size(); ++i) {
        for (size_t c = 0; c < data.size(); ++c) {
          expected[i] += static_cast<uint32_t>(weights[c]) * data[c][i] << shift;
        }
      }
      kernels_.add_columns(columns.data(), weights.data(), count, shift, scores.data(), n);
      ASSERT_EQ(scores, expected) << n << " entries, " << count << " columns";
    }
  }
}

TEST_P(ColumnsTest, SixteenBitsHoldTheLargestSum) {
  const std::vector<uint8_t> column(64, 255);
  const std::vector<const uint8_t*> columns(3, column.data());
  const std::vector<uint8_t> weights = {127, 127, 3};
  std::vector<uint32_t> scores(64);
  kernels_.add_columns(columns.data(), weights.data(), 3, 0, scores.data(), 64);
  EXPECT_EQ(scores, std::vector<uint32_t>(64, 65535));
}

TEST_P(ColumnsTest, FindAboveGivesEveryIndexInOrder) {
  SCOPED_TRACE(testing_util::TestSeed());
  constexpr int64_t kN = 512;
  std::vector<uint32_t> scores(kN);
  std::vector<float> scales(kN);
  for (const float threshold : {0.0f, 2e5f, 9e5f, 1e9f}) {
    for (int64_t i = 0; i < kN; ++i) {
      scores[static_cast<size_t>(i)] = static_cast<uint32_t>(random_.Uniform(0, 1000000));
      scales[static_cast<size_t>(i)] =
          random_.Uniform(0, 3) == 0 ? 0.0f : static_cast<float>(random_.Uniform(1, 1000)) / 1000;
    }
    std::vector<int64_t> expected;
    for (size_t i = 0; i < kN; ++i) {
      if (static_cast<float>(scores[i]) * scales[i] > threshold) {
        expected.push_back(static_cast<int64_t>(i));
      }
    }
    std::vector<int64_t> found;
    const auto next = [&](int64_t from) {
      return kernels_.find_above(scores.data(), scales.data(), from, kN, threshold);
    };
    for (int64_t i = next(0); i < kN; i = next(i + 1)) found.push_back(i);
    EXPECT_EQ(found, expected) << "threshold " << threshold;
  }
}

TEST_P(ColumnsTest, FindAboveTakesScoresUpToTheLargest) {
  std::vector<uint32_t> scores(16);
  std::vector<float> scales(16, 1.0f);
  scores[15] = (1u << 31) - 1;
  EXPECT_EQ(kernels_.find_above(scores.data(), scales.data(), 0, 16, 2.1e9f), 15);
  EXPECT_EQ(kernels_.find_above(scores.data(), scales.data(), 0, 16, 2.2e9f), 16);
}

}  // namespace
}  // namespace moesaic
