#include "prefetch/evict/expert_worth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/prefetch/test_source.h"
#include "tests/prefetch/told_predictor.h"

namespace moesaic {
namespace {

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

// Of two that are as likely used next what was used lately stays; copies are not measured by it.
TEST(ExpertWorthTest, WhatWasUsedLatelyIsWorthKeeping) {
  ExpertWorth worth(SparseLayers(4), 2, 0.5);
  worth.SetLayer(1, std::vector<float>{0.4f, 0.4f});
  worth.SetLatelyUsed(1, std::vector<float>{0.0f, 0.8f});
  for (const int position : {0, 1, 3}) {
    worth.SetPosition(position);
    EXPECT_EQ(worth.Worth(2), worth.Worth(3)) << position;
    EXPECT_NEAR(worth.KeepWorth(2), worth.Worth(2), 1e-9) << position;
    EXPECT_NEAR(worth.KeepWorth(3), worth.Worth(3) * (1 + 0.6 * 0.06 * 0.8 / 0.4), 1e-6)
        << position;
  }
  const std::unique_ptr<EvictionPolicy> policy = MakeNextUsePolicy(worth);
  EXPECT_EQ(policy->KeepPriority(3, 0), worth.KeepWorth(3));
  const std::vector<ExpertIndex> slots = {3, 2};
  EXPECT_EQ(policy->Victim(
                slots, [](ExpertIndex) { return true; }, 0),
            2);
}

TEST(ExpertWorthTest, TakesOverWhatWasPredicted) {
  ToldPredictor told(4);
  told.told = {{0.7f, 0, 0.3f}, {0.9f, 0.5f, 0.1f}, {0.95f, 0, 0}, {0, 0, 1.0f}};
  PrefetchOptions options;
  options.look_ahead = 2;
  StepPredictor step_predictor({4, 3, 1, 2}, told, options);
  step_predictor.BeginRequest(0);
  const StepRequest request = {.num_rows = 1};
  step_predictor.BeginStep({&request, 1});
  ExpertWorth worth(step_predictor.layers(), 3, 1.0);
  worth.Update(step_predictor);
  EXPECT_EQ(worth.Distance(0), 1);
  EXPECT_NEAR(worth.probability(0), 0.7, 1e-6);
  EXPECT_NEAR(worth.probability(3), 0.9, 1e-6);
  EXPECT_EQ(worth.probability(6), 0);  // two layers are looked at
  told.told[0] = {0.2f, 0, 0};
  step_predictor.OnRouting(0, std::vector<int32_t>{1});
  worth.Update(step_predictor);
  EXPECT_EQ(worth.Distance(0), 4);
  EXPECT_NEAR(worth.probability(0), 0.2, 1e-6);  // the next time
  EXPECT_NEAR(worth.probability(6), 0.95, 1e-6);
  EXPECT_EQ(worth.probability(11), 0);
  EXPECT_NEAR(worth.KeepWorth(1), 0.06 * 0.07, 1e-6);  // used by the newest token
  EXPECT_NEAR(worth.KeepWorth(0), worth.Worth(0), 1e-6);
}

}  // namespace
}  // namespace moesaic
