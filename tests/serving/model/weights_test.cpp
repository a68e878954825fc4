// What Load makes of tensors beside packing them.
#include "serving/model/weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "serving/model/load_progress.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/model/odd_model.h"

namespace moesaic {
namespace {

ModelWeights Loaded(const ModelConfig& config) {
  ThreadPool pool(1);
  return ModelWeights::Load(config, WeightType::kF32, MadeUpTensors(), KernelsFor(Isa::kScalar),
                            pool);
}

TEST(WeightsTest, NormsOfOnePlusTheWeightAreLoadedSo) {
  ModelConfig config = OddModel();
  ChangeAttention(config, [](GroupedQuerySpec& spec) { spec.qk_norm = QkNorm::kPerHead; });
  const ModelWeights plain = Loaded(config);
  config.layers[1].norm.plus_one = true;
  std::get<GroupedQuerySpec>(config.layers[2].mixer).norm.plus_one = true;
  const ModelWeights changed = Loaded(config);
  const auto expect = [](const float* got, const float* from, int64_t n, float more) {
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], from[i] + more);
  };
  expect(changed.final_norm, plain.final_norm, config.hidden_size, 0);
  for (size_t l = 0; l < 3; ++l) {
    const LayerWeights& got = changed.layers[l];
    const LayerWeights& from = plain.layers[l];
    expect(got.input_norm, from.input_norm, config.hidden_size, l == 1 ? 1.0f : 0.0f);
    expect(got.post_attention_norm, from.post_attention_norm, config.hidden_size,
           l == 1 ? 1.0f : 0.0f);
    expect(got.attention().q_norm, from.attention().q_norm, 16, l == 2 ? 1.0f : 0.0f);
    expect(got.attention().k_norm, from.attention().k_norm, 16, l == 2 ? 1.0f : 0.0f);
  }
  config.final_norm.plus_one = true;
  expect(Loaded(config).final_norm, plain.final_norm, config.hidden_size, 1);
}

// All but the gaps between matrices is told of.
TEST(WeightsTest, LoadingTellsWhatWasRead) {
  const ModelConfig config = OddModel();
  ThreadPool pool(1);
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8}) {
    LoadProgress progress("odd", nullptr);
    EXPECT_EQ(progress.fraction(), 0);
    progress.Expect(2 * ModelWeights::Bytes(config, type));
    ModelWeights::Load(config, type, MadeUpTensors(), KernelsFor(Isa::kScalar), pool, &progress);
    EXPECT_LE(progress.fraction(), 0.5);
    EXPECT_GE(progress.fraction(), 0.45);
  }
}

TEST(LoadProgressTest, TellsNowAndThen) {
  VirtualClock clock;
  std::vector<double> told;
  LoadProgress progress(
      "model", [&](double fraction) { told.push_back(fraction); }, &clock);
  const auto read = [&](uint64_t bytes, int64_t ms) {
    clock.AdvanceNs(ms * 1'000'000);
    progress.Read(bytes);
  };
  progress.Expect(1000);
  read(100, 99);  // too soon
  read(100, 1);
  read(9, 500);  // too little
  read(2, 0);
  read(500, 0);
  read(0, 100);
  read(900, 100);  // no more than all
  EXPECT_EQ(told, (std::vector<double>{0.2, 0.211, 0.711, 1}));
}

// Layers of one model may have dense MLPs and shared experts of several widths.
TEST(WeightsTest, SizesAreThoseOfTheLayer) {
  ModelConfig config = OddModel();
  std::get<ExpertsSpec>(config.layers[2].mlp).shared = {};
  std::get<ExpertsSpec>(config.layers[2].mlp).shared_gate = false;
  config.layers.push_back(config.layers[0]);
  std::get<MlpSpec>(config.layers[3].mlp).width = 40;
  EXPECT_EQ(config.widest_dense_mlp(), 136);
  const ModelWeights weights = Loaded(config);
  EXPECT_EQ(weights.layers[0].gate.n, 136);
  EXPECT_EQ(weights.layers[1].down.k, 56);
  EXPECT_EQ(weights.layers[1].shared_gate.n, 1);
  EXPECT_EQ(weights.layers[2].gate.n, 0);
  EXPECT_EQ(weights.layers[2].shared_gate.n, 0);
  EXPECT_EQ(weights.layers[3].gate.n, 40);
  EXPECT_EQ(weights.layers[3].router.n, 0);
  EXPECT_EQ(weights.memory().size(), ModelWeights::Bytes(config, WeightType::kF32));
}

}  // namespace
}  // namespace moesaic
