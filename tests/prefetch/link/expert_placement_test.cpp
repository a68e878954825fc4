#include "prefetch/link/expert_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace moesaic {
namespace {

// How far apart the largest and the smallest of n counts are; what nobody got counts as 0.
int Spread(const std::vector<int>& counts) {
  const auto [low, high] = std::minmax_element(counts.begin(), counts.end());
  return *high - *low;
}

TEST(ExpertPlacementTest, OneDeviceHasEverything) {
  const ExpertGrid grid(3, 5);
  const ExpertPlacement placement(grid, std::vector<int>{1});
  EXPECT_EQ(placement.num_devices(), 1);
  ASSERT_EQ(placement.experts(0).size(), 15u);
  for (ExpertIndex e = 0; e < 15; ++e) {
    EXPECT_EQ(placement.device(e), 0);
    EXPECT_EQ(placement.node(e), 1);
    EXPECT_EQ(placement.experts(0)[static_cast<size_t>(e)], e);
  }
}

TEST(ExpertPlacementTest, DevicesTakeTurnsNodeByNode) {
  EXPECT_EQ(TurnsByNode(std::vector<int>{0, 0, 1, 1}), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(TurnsByNode(std::vector<int>{1, 1, 0, 0}), (std::vector<int>{2, 0, 3, 1}));
  EXPECT_EQ(TurnsByNode(std::vector<int>{0, 0, 0, 1}), (std::vector<int>{0, 1, 3, 2}));
  EXPECT_EQ(TurnsByNode(std::vector<int>{-1, -1}), (std::vector<int>{0, 1}));
}

// Every layer, every run of layers, every node: as even as whole experts can be.
TEST(ExpertPlacementPropertyTest, SpreadsEvenly) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int layers = 1 + static_cast<int>(random() % 12);
    const int experts = 1 + static_cast<int>(random() % 70);
    const ExpertGrid grid(layers, experts);
    const auto nodes = static_cast<int>(1 + random() % 3);
    std::vector<int> device_nodes(1 + random() % 9);
    for (int& node : device_nodes) node = static_cast<int>(random() % static_cast<uint64_t>(nodes));
    const ExpertPlacement placement(grid, device_nodes, random());
    std::vector<int> total(device_nodes.size());
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<int> of_layer(device_nodes.size());
      std::map<int, int> of_node;
      for (int index = 0; index < experts; ++index) {
        const ExpertIndex expert = layer * experts + index;
        const int device = placement.device(expert);
        ++of_layer[static_cast<size_t>(device)];
        ++total[static_cast<size_t>(device)];
        ASSERT_EQ(placement.node(expert), device_nodes[static_cast<size_t>(device)]);
        ++of_node[placement.node(expert)];
      }
      ASSERT_LE(Spread(of_layer), 1);
      ASSERT_LE(Spread(total), 1);
      for (int node = 0; node < nodes; ++node) {
        const double share =
            static_cast<double>(experts) *
            static_cast<double>(std::count(device_nodes.begin(), device_nodes.end(), node)) /
            static_cast<double>(device_nodes.size());
        ASSERT_LT(std::abs(of_node[node] - share), 2.0);
      }
    }
    // The lists say the same as the look-up.
    std::set<ExpertIndex> seen;
    for (int d = 0; d < placement.num_devices(); ++d) {
      ASSERT_TRUE(std::is_sorted(placement.experts(d).begin(), placement.experts(d).end()));
      for (const ExpertIndex expert : placement.experts(d)) {
        ASSERT_EQ(placement.device(expert), d);
        ASSERT_TRUE(seen.insert(expert).second);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(seen.size()), grid.total());
  }
}

TEST(ExpertPlacementTest, IsTheSameEverywhereAndAlways) {
  const ExpertGrid grid(2, 8);
  const std::vector<int> nodes = {0, 1, 0};
  const ExpertPlacement a(grid, nodes, 7);
  const ExpertPlacement b(grid, nodes, 7);
  std::vector<int> devices;
  devices.reserve(16);
  for (ExpertIndex e = 0; e < 16; ++e) {
    ASSERT_EQ(a.device(e), b.device(e));
    devices.push_back(a.device(e));
  }
  // Written down once: other processes and later versions must come to the same.
  EXPECT_EQ(devices, (std::vector<int>{2, 0, 1, 1, 1, 0, 2, 0, 0, 1, 0, 2, 0, 2, 2, 1}));
}

// Neighbours in a layer do not stick together: hot experts of a topic are often neighbours.
TEST(ExpertPlacementTest, AHashNotARoundRobin) {
  const ExpertGrid grid(48, 128);
  const ExpertPlacement placement(grid, std::vector<int>{0, 1, 0, 1});
  int same = 0;
  for (ExpertIndex e = 0; e + 1 < grid.total(); ++e) {
    same += placement.device(e) == placement.device(e + 1) ? 1 : 0;
  }
  const double rate = static_cast<double>(same) / static_cast<double>(grid.total() - 1);
  EXPECT_NEAR(rate, 0.25, 0.03);  // five standard deviations of 6143 tries
  const ExpertPlacement other(grid, std::vector<int>{0, 1, 0, 1}, 1);
  int moved = 0;
  for (ExpertIndex e = 0; e < grid.total(); ++e) {
    moved += placement.device(e) != other.device(e) ? 1 : 0;
  }
  EXPECT_GT(moved, grid.total() / 2);
}

// What is fixed is where it was asked for, and does not take part in the dealing.
TEST(ExpertPlacementTest, FixedExpertsAreNotDealt) {
  const ExpertGrid grid(4, 8);
  FixedExperts fixed;
  fixed.devices.assign(static_cast<size_t>(grid.total()), FixedExperts::kDealt);
  fixed.nodes.resize(static_cast<size_t>(grid.total()));
  const ExpertPlacement all_dealt(grid, std::vector<int>{0, 1}, 0, fixed);
  const ExpertPlacement without(grid, std::vector<int>{0, 1});
  for (ExpertIndex e = 0; e < grid.total(); ++e) {
    EXPECT_EQ(all_dealt.device(e), without.device(e));
    EXPECT_EQ(all_dealt.node(e), without.node(e));
  }
  for (ExpertIndex e = 8; e < 16; ++e) fixed.devices[static_cast<size_t>(e)] = 1;
  for (ExpertIndex e = 16; e < 20; ++e) {
    fixed.devices[static_cast<size_t>(e)] = ExpertPlacement::kHost;
  }
  fixed.nodes[16] = 1;
  fixed.nodes[8] = 0;
  const ExpertPlacement placement(grid, std::vector<int>{0, 1}, 0, fixed);
  for (ExpertIndex e = 8; e < 16; ++e) EXPECT_EQ(placement.device(e), 1);
  EXPECT_EQ(placement.device(16), ExpertPlacement::kHost);
  EXPECT_EQ(placement.node(16), 1);
  EXPECT_EQ(placement.node(17), -1);
  EXPECT_EQ(placement.node(8), 0);
  EXPECT_EQ(placement.node(9), 1);
  EXPECT_EQ(placement.fixed_node(9), std::nullopt);
  // 20 are dealt: ten to each.
  EXPECT_EQ(placement.experts(0).size(), 10u);
  EXPECT_EQ(placement.experts(1).size(), 18u);
  std::set<ExpertIndex> seen;
  for (const int device : {0, 1}) {
    for (const ExpertIndex e : placement.experts(device)) seen.insert(e);
  }
  EXPECT_EQ(seen.size(), 28u);
}

}  // namespace
}  // namespace moesaic
