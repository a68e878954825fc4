#include "prefetch/link/miss_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace moesaic {
namespace {

int64_t End(int64_t host_ns, int links, const std::vector<MissedExpert>& plan) {
  std::vector<int64_t> link_ns(static_cast<size_t>(links), 0);
  int64_t host = 0;
  for (const MissedExpert& miss : plan) {
    if (miss.on_host) {
      host += host_ns;
    } else {
      link_ns[static_cast<size_t>(miss.link)] += miss.copy_ns;
    }
  }
  return std::max(host, *std::max_element(link_ns.begin(), link_ns.end()));
}

// The end of the best plan there is.
int64_t BestEnd(int64_t host_ns, int links, std::vector<MissedExpert> plan) {
  int64_t best = INT64_MAX;
  for (uint32_t mask = 0; mask < 1u << plan.size(); ++mask) {
    for (size_t i = 0; i < plan.size(); ++i) plan[i].on_host = (mask >> i & 1) != 0;
    best = std::min(best, End(host_ns, links, plan));
  }
  return best;
}

// All small layers: up to four experts, each absent or with its copy on the way (nearly there, or a
// third of it left), on one link or two.
TEST(MissPlannerTest, EndsAsSoonAsTheBestOfAllPlans) {
  constexpr int64_t kCopies[] = {100, 33, 8};
  for (const int links : {1, 2}) {
    const int kinds = 3 * links;
    for (int experts = 1; experts <= 4; ++experts) {
      int layers = 1;
      for (int e = 0; e < experts; ++e) layers *= kinds;
      for (int layer = 0; layer < layers; ++layer) {
        std::vector<MissedExpert> missed;
        for (int e = 0, rest = layer; e < experts; ++e, rest /= kinds) {
          const int kind = rest % kinds;
          missed.push_back({static_cast<ExpertIndex>(e), kind / 3, kCopies[kind % 3], 0, false});
        }
        for (const int64_t host_ns : {5, 20, 40, 100, 190, 450}) {
          std::vector<MissedExpert> plan = missed;
          PlanMisses(MissMode::kAuto, host_ns, links, plan);
          ASSERT_EQ(End(host_ns, links, plan), BestEnd(host_ns, links, missed))
              << links << " links, layer " << layer << " of " << experts << " experts, host "
              << host_ns;
        }
      }
    }
  }
}

TEST(MissPlannerTest, LargerLayersToo) {
  std::mt19937 random(std::random_device{}());
  const auto seed = random();
  SCOPED_TRACE(seed);
  random.seed(seed);
  for (int round = 0; round < 200; ++round) {
    const int links = 1 + static_cast<int>(random() % 3);
    const int64_t host_ns = 5 + static_cast<int64_t>(random() % 400);
    std::vector<MissedExpert> missed(1 + random() % 8);
    for (size_t i = 0; i < missed.size(); ++i) {
      missed[i] = {static_cast<ExpertIndex>(i),
                   static_cast<int32_t>(random() % static_cast<unsigned>(links)),
                   1 + static_cast<int64_t>(random() % 100), 0, false};
    }
    const int64_t best = BestEnd(host_ns, links, missed);
    PlanMisses(MissMode::kAuto, host_ns, links, missed);
    EXPECT_EQ(End(host_ns, links, missed), best);
  }
}

// The experts that the host computes, ascending.
std::vector<ExpertIndex> OnHost(std::vector<MissedExpert> missed, int64_t host_ns, int links) {
  PlanMisses(MissMode::kAuto, host_ns, links, missed);
  std::vector<ExpertIndex> experts;
  for (const MissedExpert& miss : missed) {
    if (miss.on_host) experts.push_back(miss.expert);
  }
  std::sort(experts.begin(), experts.end());
  return experts;
}

// Where several plans end equally soon, the choice is told by the worth of having an expert, by the
// number of an expert and by what the links have left to do; never by the order of the arguments.
TEST(MissPlannerTest, TiesAreDecided) {
  using List = std::vector<ExpertIndex>;
  const auto in_every_order = [](std::vector<MissedExpert> missed, int64_t host_ns, int links,
                                 const List& expected) {
    const auto before = [](const MissedExpert& a, const MissedExpert& b) {
      return a.expert < b.expert;
    };
    std::sort(missed.begin(), missed.end(), before);
    do {
      EXPECT_EQ(OnHost(missed, host_ns, links), expected);
    } while (std::next_permutation(missed.begin(), missed.end(), before));
  };
  // Equally dear to fetch: the host takes what is worth least afterwards.
  in_every_order({{1, 0, 50, 0.9}, {2, 0, 50, 0.1}, {3, 0, 50, 0.5}}, 60, 1, {2});
  in_every_order({{1, 0, 50, 0.9}, {2, 0, 50, 0.1}, {3, 0, 50, 0.5}}, 20, 1, {2, 3});
  // Worth the same, too: the lowest number.
  in_every_order({{4, 0, 50, 0.5}, {2, 0, 50, 0.5}, {3, 0, 50, 0.5}}, 60, 1, {2});
  // What is dearest to fetch goes first, whatever it is worth.
  in_every_order({{1, 0, 90, 0.9}, {2, 0, 10, 0.1}}, 60, 1, {1});
  // A plan that ends equally soon and copies less is taken: fetching alone takes 100, so does the
  // host.
  in_every_order({{1, 0, 100, 0.5}}, 100, 1, {1});
  in_every_order({{1, 0, 99, 0.5}}, 100, 1, {});
  in_every_order({{1, 0, 50, 0.5}, {2, 0, 50, 0.5}}, 100, 1, {1});
  // Two links that have as much to do: the one that has the lowest of equal experts is relieved.
  in_every_order({{1, 1, 50, 0.5}, {2, 0, 50, 0.5}}, 40, 2, {1});
  in_every_order({{1, 0, 50, 0.5}, {2, 1, 50, 0.5}}, 40, 2, {1});
  // The busier link is relieved, of its dearest one, though the other link has a dearer one.
  in_every_order({{1, 0, 60, 0.5}, {2, 1, 50, 0.5}, {3, 1, 40, 0.5}}, 60, 2, {2});
}

TEST(MissPlannerTest, ModesAndKeptProgress) {
  std::vector<MissedExpert> missed = {{0, 0, 100, 0, false}, {1, 0, 10, 0, false}};
  PlanMisses(MissMode::kFetch, 0, 1, missed);
  EXPECT_FALSE(missed[0].on_host || missed[1].on_host);
  PlanMisses(MissMode::kHost, 0, 1, missed);
  EXPECT_TRUE(missed[0].on_host && missed[1].on_host);
  PlanMisses(MissMode::kAuto, 60, 1, missed);
  for (const MissedExpert& miss : missed) EXPECT_EQ(miss.on_host, miss.expert == 0);
}

}  // namespace
}  // namespace moesaic
