// How many experts so many rows use, from rows whose choices are known.
#include "serving/plan/routing_curve.h"

#include <gtest/gtest.h>

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

TEST_F(RoutingCurveTest, DrawsDecodedRowsWithoutPuttingBack) {
  std::vector<SequenceSlice> slices;
  for (int64_t row = 0; row < 8; ++row) slices.push_back(Slice(row, 1, false));
  Route(0, slices, {0, 1, 2, 3, 0, 1, 2, 3}, 1);
  // A layer without experts between them; the second one always takes the same.
  Route(2, slices, {3, 3, 3, 3, 3, 3, 3, 3}, 1);
  const std::vector<RoutedRows> points = curve_.Points();
  ASSERT_EQ(points.size(), 6u);  // 1, 2, 3, 4, 6, 8
  EXPECT_NEAR(points[0].experts, 1, 1e-9);
  // Of two rows: 4 (1 - C(6, 2) / C(8, 2)) in the first layer.
  EXPECT_EQ(points[1].rows, 2);
  EXPECT_NEAR(points[1].experts, (4 * (1 - 15.0 / 28) + 1) / 2, 1e-9);
  EXPECT_EQ(points[5].rows, 8);
  EXPECT_NEAR(points[5].experts, (4 + 1) / 2.0, 1e-9);
}

TEST_F(RoutingCurveTest, TakesTheSecondHalvesOfPromptsForMoreRows) {
  Route(0, {Slice(0, 1, false)}, {0, 1}, 2);
  // First halves choose expert 3.
  Route(0, {Slice(0, 4, true), Slice(4, 4, true)}, {3, 2, 3, 2, 0, 1, 0, 1, 3, 2, 3, 2, 1, 0, 2, 1},
        2);
  const std::vector<RoutedRows> points = curve_.Points();
  ASSERT_EQ(points.size(), 4u);  // 1 decoded row; 2, 3, 4 of prompts
  EXPECT_NEAR(points[0].experts, 2, 1e-9);
  EXPECT_EQ(points[3].rows, 4);
  EXPECT_NEAR(points[3].experts, 3, 1e-9);
}

}  // namespace
}  // namespace moesaic
