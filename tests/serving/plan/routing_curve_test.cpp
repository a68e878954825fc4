// How many experts so many rows use, from rows whose choices are known.
#include "serving/plan/routing_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace moesaic {
namespace {

SequenceSlice Slice(int64_t first_row, int64_t num_tokens, bool prefill) {
  SequenceSlice slice;
  slice.first_row = first_row;
  slice.num_tokens = num_tokens;
  slice.prefill = prefill;
  return slice;
}

class RoutingCurveTest : public testing::Test {
 protected:
  void Route(int64_t layer, std::vector<SequenceSlice> slices, std::vector<int32_t> experts,
             size_t top_k) {
    const std::vector<int32_t> tokens(experts.size() / top_k, 0);
    std::vector<float> weights(experts.size(), 1);
    curve_.OnRouting(layer, {tokens, slices}, experts, weights);
  }
  RoutingCurve curve_{4};
};

TEST_F(RoutingCurveTest, IsEmptyWithoutRows) { EXPECT_TRUE(curve_.Points().empty()); }

TEST_F(RoutingCurveTest, DrawsRowsOfAStepWithoutPuttingBack) {
  std::vector<SequenceSlice> slices;
  for (int64_t row = 0; row < 8; ++row) slices.push_back(Slice(row, 1, false));
  Route(0, slices, {0, 1, 2, 3, 0, 1, 2, 3}, 1);
  // A layer without experts between them; the second one always takes the same.
  Route(2, slices, {3, 3, 3, 3, 3, 3, 3, 3}, 1);
  const std::vector<RoutedRows> points = curve_.Points();
  ASSERT_EQ(points.size(), 8u);  // 1, 2, 3, 4, 6, 8, and extrapolated 11, 16
  EXPECT_NEAR(points[0].experts, 1, 1e-9);
  // Of two rows: 4 (1 - C(6, 2) / C(8, 2)) in the first layer.
  EXPECT_EQ(points[1].rows, 2);
  EXPECT_NEAR(points[1].experts, (4 * (1 - 15.0 / 28) + 1) / 2, 1e-9);
  // Two other rows use a quarter of the first layer's again, each expert by 1 - (3 / 4)^2.
  const double first = 4 * (1 - 15.0 / 28);
  EXPECT_NEAR(points[1].repeated, (first * (1 - 9.0 / 16) + 1) / 2, 1e-9);
  EXPECT_EQ(points[5].rows, 8);
  EXPECT_NEAR(points[5].experts, (4 + 1) / 2.0, 1e-9);
  // Nothing was chosen once only: no others are expected.
  EXPECT_EQ(points[7].rows, 16);
  EXPECT_NEAR(points[7].experts, (4 + 1) / 2.0, 1e-9);
}

// A sequence that always takes its own expert: as many rows of one step use more of them than the
// rows of several steps do.
TEST_F(RoutingCurveTest, CountsEachStepByItself) {
  const std::vector<SequenceSlice> slices = {Slice(0, 1, false), Slice(1, 1, false)};
  for (int step = 0; step < 3; ++step) Route(0, slices, {0, 1}, 1);
  const std::vector<RoutedRows> points = curve_.Points();
  ASSERT_GE(points.size(), 2u);
  EXPECT_EQ(points[1].rows, 2);
  EXPECT_NEAR(points[1].experts, 2, 1e-9);
}

TEST_F(RoutingCurveTest, ExpectsUnseenExpertsOfMoreRows) {
  // Once: experts 0 and 1; twice: 2. Chao2: (4 - 1) / 4 x 2^2 / (2 x 1) unseen, one at most.
  std::vector<SequenceSlice> slices;
  for (int64_t row = 0; row < 4; ++row) slices.push_back(Slice(row, 1, false));
  Route(0, slices, {0, 1, 2, 2}, 1);
  const std::vector<RoutedRows> points = curve_.Points();
  EXPECT_EQ(points.back().rows, 8);
  const double once = 2;
  EXPECT_NEAR(points.back().experts, 3 + 1 - std::pow(1 - once / (4 * 1 + once), 4), 1e-9);
}

TEST_F(RoutingCurveTest, ExpectsUnseenExpertsWhereNoneWasChosenTwice) {
  // Chao2 without pairs: (2 - 1) / 2 x 2 (2 - 1) / 2 = 1/2 unseen of the 14.
  RoutingCurve wide(16);
  std::vector<SequenceSlice> slices = {Slice(0, 1, false), Slice(1, 1, false)};
  const std::vector<int32_t> tokens(2, 0);
  std::vector<int32_t> experts = {0, 1};
  std::vector<float> weights(2, 1);
  wide.OnRouting(0, {tokens, slices}, experts, weights);
  const std::vector<RoutedRows> points = wide.Points();
  EXPECT_EQ(points.back().rows, 4);
  EXPECT_NEAR(points.back().experts, 2 + 0.5 * (1 - std::pow(1 - 2 / (2 * 0.5 + 2), 2)), 1e-9);
}

TEST_F(RoutingCurveTest, TakesTheSecondHalvesOfPromptsForManyMoreRows) {
  Route(0, {Slice(0, 1, false)}, {0, 1}, 2);
  // First halves choose expert 3.
  Route(0, {Slice(0, 4, true), Slice(4, 4, true)}, {3, 2, 3, 2, 0, 1, 0, 1, 3, 2, 3, 2, 1, 0, 2, 1},
        2);
  const std::vector<RoutedRows> points = curve_.Points();
  ASSERT_EQ(points.size(), 4u);  // 1 decoded row, 2 extrapolated; 3, 4 of prompts
  EXPECT_NEAR(points[0].experts, 2, 1e-9);
  EXPECT_EQ(points[3].rows, 4);
  EXPECT_NEAR(points[3].experts, 3, 1e-9);
}

}  // namespace
}  // namespace moesaic
