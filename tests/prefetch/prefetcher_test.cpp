#include "prefetch/prefetcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "prefetch/eviction_policies.h"
#include "prefetch/expert_worth.h"
#include "prefetch/link_prefetch.h"
#include "prefetch/miss_planner.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

// Says what it is told to.
class ToldPredictor final : public Predictor {
 public:
  explicit ToldPredictor(int layers) : layers_(layers) {}
  const char* name() const override { return "told"; }
  void BeginRequest(int) override {}
  void BeginIteration(int, int32_t, int64_t) override { last_ = -1; }
  void Observe(int, int layer, std::span<const int32_t>) override { last_ = layer; }
  void Predict(int request, int distance, std::span<float> probability) override {
    const int layer = (last_ + distance) % layers_;
    for (size_t j = 0; j < probability.size(); ++j) {
      probability[j] = request == 0 ? told[static_cast<size_t>(layer)][j] : 0.5f;
    }
  }
  void EndRequest(int) override {}
  uint64_t memory_bytes() const override { return 0; }

  std::vector<std::vector<float>> told;

 private:
  int layers_;
  int last_ = -1;
};

TEST(ExpertWorthTest, NearerUsesAreWorthMore) {
  ExpertWorth worth(SparseLayers(4), 2, 0.5);
  const std::vector<float> p = {0.8f, 0.2f};
  for (int layer = 0; layer < 4; ++layer) worth.SetLayer(layer, p);
  worth.SetPosition(1);
  EXPECT_EQ(worth.Distance(2), 1);
  EXPECT_EQ(worth.Distance(1), 4);
  EXPECT_EQ(worth.Distance(0), 3);
  EXPECT_NEAR(worth.Worth(2 * 2), 0.8 * std::pow(0.5, 0.25), 1e-6);
  EXPECT_NEAR(worth.Worth(1 * 2), 0.8 * 0.5, 1e-6);
  EXPECT_GT(worth.Worth(2 * 2), worth.Worth(3 * 2));
  EXPECT_GT(worth.Worth(0), worth.Worth(1));
  worth.SetPosition(-1);
  EXPECT_EQ(worth.Distance(0), 1);
  EXPECT_EQ(worth.Distance(3), 4);
}

TEST(ExpertWorthTest, LayersWithoutExpertsAreNoDistance) {
  TestSourceShape shape;
  shape.num_layers = 5;
  shape.dense_layers = {0, 3};
  ExpertWorth worth(SparseLayers(TestSource(shape), 5), 2, 0.5);
  for (const int layer : {1, 2, 4}) worth.SetLayer(layer, std::vector<float>{1, 1});
  worth.SetPosition(1);  // layer 2
  EXPECT_EQ(worth.LayerAt(1), 4);
  EXPECT_EQ(worth.LayerAt(2), 1);
  EXPECT_EQ(worth.LayerAt(3), 2);
  EXPECT_EQ(worth.Distance(4), 1);
  EXPECT_NEAR(worth.Worth(1 * 2), std::pow(0.5, 2.0 / 3), 1e-6);
}

// One link that has taken over what was predicted behind layer 0.
struct PrefetcherTest : testing::Test {
  PrefetcherTest() : told(4) {
    told.told = {{0, 0, 0}, {0.9f, 0.5f, 0.1f}, {0.95f, 0, 0}, {0, 0, 1.0f}};
    options.look_ahead = 2;
    options.min_gain = 0.2;
    options.keep_per_iteration = 1.0;
  }
  std::optional<LinkPrefetch::Candidate> Next(double victim, double copies_per_layer = 1,
                                              std::vector<ExpertIndex> experts = {}) {
    Prefetcher prefetcher({4, 3, 1, 2}, told, options);
    prefetcher.BeginRequest(0);
    const StepRequest request = {.num_rows = 1};
    prefetcher.BeginStep({&request, 1});
    prefetcher.OnRouting(0, std::vector<int32_t>{0});
    LinkPrefetch link(prefetcher, experts);
    link.TakeOver(prefetcher);
    return link.Best(
        [this](ExpertIndex expert) {
          return std::find(resident.begin(), resident.end(), expert) == resident.end();
        },
        [&](int distance) { return copies_per_layer * distance; }, victim);
  }

  ToldPredictor told;
  PrefetchOptions options;
  std::vector<ExpertIndex> resident;
};

TEST_F(PrefetcherTest, TakesWhatGainsMostAndStopsWhereNothingGains) {
  EXPECT_EQ(Next(0)->expert, 6);  // layer 2, 0.95
  resident = {6};
  EXPECT_EQ(Next(0)->expert, 3);  // layer 1, 0.9
  resident = {6, 3};
  EXPECT_EQ(Next(0)->expert, 4);
  EXPECT_NEAR(Next(0)->worth, 0.5 - 0.2, 1e-6);
  EXPECT_FALSE(Next(0.31).has_value());  // the victim is worth more
  resident = {6, 3, 4};
  EXPECT_FALSE(Next(0).has_value());  // 0.1 is below the price; layer 3 is too far
}

TEST_F(PrefetcherTest, WhatCannotArriveInTimeCountsForThePartThatDoes) {
  told.told[2][0] = 0.91f;
  EXPECT_EQ(Next(0, 1)->expert, 6);
  told.told[1][0] = 0.99f;
  EXPECT_EQ(Next(0, 1)->expert, 3);
  EXPECT_EQ(Next(0, 0.3)->expert, 6);  // of layer 1 only a third would be there
}

TEST_F(PrefetcherTest, ALinkLooksOnlyAtExpertsOfItsOwn) {
  EXPECT_EQ(Next(0, 1, {0, 4, 8})->expert, 4);
  EXPECT_FALSE(Next(0, 1, {0, 1, 2}).has_value());
}

TEST_F(PrefetcherTest, TheLayerItselfIsPredictedForTheNextIteration) {
  told.told[0] = {0.7f, 0, 0.3f};
  Prefetcher prefetcher({4, 3, 1, 2}, told, options);
  prefetcher.BeginRequest(0);
  const StepRequest request = {.num_rows = 1};
  prefetcher.BeginStep({&request, 1});
  prefetcher.OnRouting(0, std::vector<int32_t>{1});
  ExpertWorth worth(prefetcher.layers(), 3, 1.0);
  prefetcher.Publish(worth);
  EXPECT_NEAR(worth.probability(0), 0.7, 1e-6);
  EXPECT_NEAR(worth.probability(2), 0.3, 1e-6);
}

TEST_F(PrefetcherTest, RequestsOfAStepAddUp) {
  Prefetcher prefetcher({4, 3, 1, 2}, told, options);
  prefetcher.BeginRequest(0);
  prefetcher.BeginRequest(1);
  const std::vector<StepRequest> requests = {{.request = 0, .num_rows = 1},
                                             {.request = 1, .first_row = 1, .num_rows = 1}};
  prefetcher.BeginStep(requests);
  ExpertWorth worth(prefetcher.layers(), 3, 1.0);
  prefetcher.Publish(worth);
  // The second request says 0.5 of everything.
  EXPECT_NEAR(worth.probability(3), 1 - 0.1 * 0.5, 1e-6);
  EXPECT_NEAR(worth.probability(0), 0.5, 1e-6);
}

TEST(EvictionPoliciesTest, NextUseEvictsWhatIsWorthLeast) {
  ExpertWorth worth(SparseLayers(2), 3, 1.0);
  worth.SetLayer(0, std::vector<float>{0.3f, 0.1f, 0.9f});
  worth.SetLayer(1, std::vector<float>{0.2f, 0.05f, 0.4f});
  const auto policy = MakeNextUsePolicy(worth);
  const std::vector<ExpertIndex> slots = {0, 2, 3, kNoExpert, 4};
  EXPECT_EQ(policy->Victim(
                slots, [](ExpertIndex) { return true; }, 0),
            4);
  EXPECT_EQ(policy->Victim(
                slots, [](ExpertIndex e) { return e != 4; }, 0),
            3);
}

TEST(EvictionPoliciesTest, RequestEamForgetsTheLastRequestAndFavoursEarlyLayers) {
  PolicyCounts counts(ExpertGrid(2, 4));
  const auto observe = [&](int request, int layer, std::vector<int32_t> experts) {
    counts.BeginLayer(layer);
    counts.Observe(request, experts);
  };
  counts.BeginRequest(0);
  const auto policy = MakeCountingPolicy("request-eam", counts);
  counts.BeginIteration(0, 1);
  observe(0, 0, {0, 1});
  observe(0, 1, {0, 1});
  policy->OnInsert(0, LoadReason::kOnDemand, 0);
  policy->OnInsert(4, LoadReason::kOnDemand, 0);
  EXPECT_GT(policy->KeepPriority(0, 0), policy->KeepPriority(4, 0));
  EXPECT_GT(policy->KeepPriority(4, 0), policy->KeepPriority(6, 0));
  counts.EndRequest(0);
  counts.BeginRequest(0);
  counts.BeginIteration(0, 1);
  observe(0, 0, {2, 3});
  EXPECT_EQ(policy->KeepPriority(0, 0), 0);
  EXPECT_EQ(counts.in_all(0), 1u);
  // What is fetched ahead of its layer stays until that has passed.
  policy->OnInsert(6, LoadReason::kPrefetch, 0);
  EXPECT_EQ(policy->KeepPriority(6, 0), 2);
  observe(0, 1, {0, 1});
  EXPECT_LT(policy->KeepPriority(6, 0), 1);
}

TEST(EvictionPoliciesTest, OfEquallyOftenUsedTheLeastRecentLeaves) {
  PolicyCounts counts(ExpertGrid(1, 4));
  const auto policy = MakeCountingPolicy("lfu", counts);
  policy->OnInsert(3, LoadReason::kOnDemand, 0);
  policy->OnInsert(1, LoadReason::kOnDemand, 0);
  EXPECT_LT(policy->KeepPriority(3, 0), policy->KeepPriority(1, 0));
  policy->OnAccess(1, 0);
  policy->OnAccess(3, 0);
  EXPECT_LT(policy->KeepPriority(1, 0), policy->KeepPriority(3, 0));
}

// Requests that run together: what one of them used counts until it ends, and no longer.
TEST(EvictionPoliciesTest, CountsOfRunningRequestsAddUp) {
  PolicyCounts counts(ExpertGrid(3, 4));  // of which layer 0 has no experts
  counts.BeginRequest(0);
  counts.BeginRequest(5);
  counts.BeginIteration(0, 2);
  counts.BeginIteration(5, 1);
  counts.BeginLayer(1);
  counts.Observe(0, std::vector<int32_t>{1, 1});
  counts.Observe(5, std::vector<int32_t>{1});
  counts.BeginLayer(2);
  counts.Observe(0, std::vector<int32_t>{3, 0});
  counts.Observe(5, std::vector<int32_t>{3});
  EXPECT_EQ(counts.in_running(5), 3u);
  EXPECT_EQ(counts.in_running(11), 2u);
  EXPECT_EQ(counts.running_tokens(), 3u);
  EXPECT_EQ(counts.layers_passed(), 3);
  counts.EndRequest(0);
  EXPECT_EQ(counts.in_running(5), 1u);
  EXPECT_EQ(counts.in_running(8), 0u);
  EXPECT_EQ(counts.running_tokens(), 1u);
  EXPECT_EQ(counts.in_all(5), 3u);
  counts.BeginLayer(1);  // the next step
  EXPECT_EQ(counts.layers_passed(), 5);

  PolicyCounts restored(ExpertGrid(3, 4));
  restored.section().Load(1, counts.section().Save());
  EXPECT_EQ(restored.in_all(5), 3u);
  EXPECT_EQ(restored.in_running(5), 0u);
  PolicyCounts other(ExpertGrid(3, 5));
  EXPECT_THROW(other.section().Load(1, counts.section().Save()), Error);
}

// ---------------------------------------------------------------------------------------------------

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
