#include "prefetch/predict/step_predictor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tests/prefetch/told_predictor.h"

namespace moesaic {
namespace {

struct StepPredictorTest : testing::Test {
  StepPredictorTest() : told(4) {
    told.told = {{0, 0, 0}, {0.9f, 0.5f, 0.1f}, {0.95f, 0, 0}, {0, 0, 1.0f}};
    options.look_ahead = 2;
  }

  ToldPredictor told;
  PrefetchOptions options;
};

TEST_F(StepPredictorTest, TheLayerItselfIsPredictedForTheNextIteration) {
  told.told[0] = {0.7f, 0, 0.3f};
  StepPredictor step_predictor({4, 3, 1, 2}, told, options);
  step_predictor.BeginRequest(0);
  const StepRequest request = {.num_rows = 1};
  step_predictor.BeginStep({&request, 1});
  step_predictor.OnRouting(0, std::vector<int32_t>{1});
  EXPECT_EQ(step_predictor.predicted_at(), 0);
  const std::span<const float> predicted = step_predictor.predicted(4);
  EXPECT_NEAR(predicted[0], 0.7, 1e-6);
  EXPECT_NEAR(predicted[2], 0.3, 1e-6);
}

TEST_F(StepPredictorTest, RequestsOfAStepAddUp) {
  StepPredictor step_predictor({4, 3, 1, 2}, told, options);
  step_predictor.BeginRequest(0);
  step_predictor.BeginRequest(1);
  const std::vector<StepRequest> requests = {{.request = 0, .num_rows = 1},
                                             {.request = 1, .first_row = 1, .num_rows = 1}};
  step_predictor.BeginStep(requests);
  // The second request says 0.5 of everything.
  EXPECT_NEAR(step_predictor.predicted(2)[0], 1 - 0.1 * 0.5, 1e-6);
  EXPECT_NEAR(step_predictor.predicted(1)[0], 0.5, 1e-6);
}

// The newest token counts 0.07, older ones 0.93 of the next each; rows of a request count
// by their mean, requests of a step as one of them.
TEST_F(StepPredictorTest, CountsWhatStepsHaveLatelyUsed) {
  StepPredictor step_predictor({4, 3, 1, 2}, told, options);
  step_predictor.BeginRequest(0);
  step_predictor.BeginRequest(1);
  const StepRequest alone = {.num_rows = 1};
  const auto step = [&](std::span<const StepRequest> requests, std::vector<int32_t> experts) {
    step_predictor.BeginStep(requests);
    step_predictor.OnRouting(0, std::vector<int32_t>(experts.size(), 2));
    step_predictor.OnRouting(1, experts);
    const std::span<const float> used = step_predictor.lately_used();
    return std::vector<float>(used.begin(), used.end());
  };
  std::vector<float> used = step({&alone, 1}, {1});
  EXPECT_NEAR(used[1], 0.07, 1e-6);
  EXPECT_EQ(used[2], 0);  // layer 0 is not layer 1
  used = step({&alone, 1}, {0});
  EXPECT_NEAR(used[1], 0.07 * 0.93, 1e-6);
  EXPECT_NEAR(used[0], 0.07, 1e-6);
  const std::vector<StepRequest> both = {{.request = 0, .num_rows = 1},
                                         {.request = 1, .first_row = 1, .num_rows = 2}};
  used = step(both, {1, 1, 0});  // two tokens pass
  EXPECT_NEAR(used[1], 0.07 * 0.93 * 0.8649 + 0.1351, 1e-6);
  EXPECT_NEAR(used[0], 0.07 * 0.8649 + 0.1351 * 0.5, 1e-6);
}

}  // namespace
}  // namespace moesaic
