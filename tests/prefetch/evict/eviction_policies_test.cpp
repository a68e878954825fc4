#include "prefetch/evict/eviction_policies.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/base/error.h"
#include "prefetch/evict/expert_worth.h"

namespace moesaic {
namespace {

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

}  // namespace
}  // namespace moesaic
