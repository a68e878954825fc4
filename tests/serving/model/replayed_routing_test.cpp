// The replay that comparisons of two classes rest on lets near ties pass and nothing else.
#include "tests/serving/model/replayed_routing.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace moesaic {
namespace {

// Two rows of two of a layer's experts, by the class that is replayed.
RoutingLog Recorded() {
  RoutingLog recorded;
  recorded.experts = {{}, {4, 7, 2, 0}};  // the first layer is dense
  recorded.weights = {{}, {0.5f, 0.2f, 0.4f, 0.3f}};
  return recorded;
}

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

float DifferenceOf(Choice own) {
  const RoutingLog recorded = Recorded();
  ReplayedRouting replayed(recorded, 2);
  EXPECT_FALSE(replayed.used_all());
  replayed.OnRouting(1, {}, own.experts, own.weights);
  EXPECT_TRUE(replayed.used_all());
  EXPECT_EQ(own.experts, recorded.experts[1]);
  EXPECT_EQ(own.weights, recorded.weights[1]);
  return replayed.largest_difference();
}

TEST(ReplayedRoutingTest, TellsNearTiesFromWrongChoices) {
  EXPECT_EQ(DifferenceOf({{4, 7, 2, 0}, {0.5f, 0.2f, 0.4f, 0.3f}}), 0);
  EXPECT_EQ(DifferenceOf({{7, 4, 2, 0}, {0.2f, 0.5f, 0.4f, 0.3f}}), 0);  // another order
  // Expert 5 nearly tied with 7, and 1 with 0.
  EXPECT_NEAR(DifferenceOf({{4, 5, 2, 1}, {0.5f, 0.21f, 0.4f, 0.3f}}), 0.01f, 1e-6f);
  // A weight that is off; experts that trade theirs; another one in the place of the first.
  EXPECT_NEAR(DifferenceOf({{4, 7, 2, 0}, {0.5f, 0.2f, 0.4f, 0.1f}}), 0.2f, 1e-6f);
  EXPECT_NEAR(DifferenceOf({{7, 4, 2, 0}, {0.5f, 0.2f, 0.4f, 0.3f}}), 0.3f, 1e-6f);
  EXPECT_NEAR(DifferenceOf({{5, 7, 2, 0}, {0.5f, 0.2f, 0.4f, 0.3f}}), 0.3f, 1e-6f);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(DifferenceOf({{4, 7, 2, 0}, {nan, 0.2f, 0.4f, 0.3f}}) <= 1);
}

}  // namespace
}  // namespace moesaic
