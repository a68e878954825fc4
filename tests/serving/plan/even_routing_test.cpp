// Which experts a profiled pass uses.

#include "serving/plan/even_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace moesaic {
namespace {

std::vector<int32_t> Routed(EvenRouting& routing, size_t pairs) {
  std::vector<int32_t> experts(pairs, 7);
  std::vector<float> weights(pairs);
  routing.OnRouting(0, {}, experts, weights);
  return experts;
}

TEST(EvenRoutingTest, PassesTakeTheirTurnsAmongExperts) {
  EvenRouting routing(8);
  std::set<int32_t> seen;
  for (int pass = 0; pass < 3; ++pass) {
    routing.Spread(2, 6);
    const std::vector<int32_t> experts = Routed(routing, 12);
    const std::set<int32_t> distinct(experts.begin(), experts.end());
    ASSERT_EQ(distinct.size(), 2u);
    for (const int32_t expert : distinct) {
      EXPECT_LT(expert, 6);
      EXPECT_TRUE(seen.insert(expert).second) << expert;  // not the last pass's
      EXPECT_EQ(std::count(experts.begin(), experts.end(), expert), 6);
    }
    EXPECT_EQ(Routed(routing, 12), experts);  // of all layers of a pass
  }
  EXPECT_EQ(seen.size(), 6u);
  // Around the end, and all of them.
  routing.Spread(5, 6);
  const std::vector<int32_t> five = Routed(routing, 5);
  EXPECT_EQ(std::set<int32_t>(five.begin(), five.end()).size(), 5u);
  routing.Spread(6, 6);
  const std::vector<int32_t> all = Routed(routing, 6);
  EXPECT_EQ(std::set<int32_t>(all.begin(), all.end()).size(), 6u);
}

TEST(EvenRoutingTest, ObservesWhatTheRouterChose) {
  EvenRouting routing(8);
  routing.Spread(2, 6);
  routing.Observe();
  EXPECT_EQ(Routed(routing, 4), (std::vector<int32_t>{7, 7, 7, 7}));
  EXPECT_EQ(routing.touched(), 1);
  EXPECT_EQ(routing.pairs(), 4);
}

}  // namespace
}  // namespace moesaic
