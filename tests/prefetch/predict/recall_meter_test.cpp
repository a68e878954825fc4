#include "prefetch/predict/recall_meter.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

// Says at every distance that experts 0 and 1 come next, 0 more surely.
class Stubborn final : public Predictor {
 public:
  const char* name() const override { return "stubborn"; }
  void BeginRequest(int) override {}
  void BeginIteration(int, int32_t, int64_t) override {}
  void Observe(int, int, std::span<const int32_t>) override {}
  void Predict(int, int, std::span<float> probability) override {
    std::fill(probability.begin(), probability.end(), 0.1f);
    probability[0] = 0.9f;
    probability[1] = 0.8f;
  }
  void EndRequest(int) override {}
  uint64_t memory_bytes() const override { return 0; }
};

TEST(RecallMeterTest, CountsWhatWasAmongTheMostProbable) {
  const PredictorShape shape{6, 8, 2, 2};
  Stubborn predictor;
  StepPredictor step_predictor(shape, predictor, {});
  RecallMeter meter(shape);
  step_predictor.BeginRequest(0);
  // Layers use 0 and 5: one of two is foreseen. With two requests, 0, 5 and 1: n is three, and
  // among the three most probable are 0, 1 and (of equals the first) 2.
  const auto run = [&](std::vector<int32_t> experts, int steps, bool counts) {
    for (int step = 0; step < steps; ++step) {
      step_predictor.BeginStep(std::vector<StepRequest>{{0, 0, 0, 1}});
      meter.BeginStep(counts);
      meter.Predicted(-1, step_predictor);
      for (int layer = 0; layer < shape.num_layers; ++layer) {
        meter.Used(layer, experts);
        step_predictor.OnRouting(layer, std::vector<int32_t>{0, 5});
        meter.Predicted(layer, step_predictor);
      }
    }
    return meter.Take();
  };
  const RecallStats one = run({0, 5}, 4, true);
  for (size_t i = 0; i < one.used.size(); ++i) {
    EXPECT_GT(one.used[i], 0u);
    EXPECT_EQ(one.found[i] * 2, one.used[i]);
  }
  // In four steps each layer has been measured at each distance that reaches back to the step.
  EXPECT_EQ(one.used[0], 2u * 6);
  EXPECT_EQ(one.used[3], 2u * 3);

  const RecallStats two = run({0, 5, 1, 0}, 4, true);
  EXPECT_EQ(two.used[0], 3u * 6);
  EXPECT_EQ(two.found[0], 2u * 6);
  // Of 0, 2 and 5 the first two: 2 is the first of equals. Of 0 and 2 the first: 1 is before 2.
  EXPECT_EQ(run({0, 5, 2, 0}, 4, true).found[0], 2u * 6);
  EXPECT_EQ(run({0, 2}, 4, true).found[0], 1u * 6);

  EXPECT_EQ(run({0, 5}, 4, false).used[0], 0u);
}

}  // namespace
}  // namespace moesaic
