// What ExpertRunner asks of who serves its experts: which, when, and that each is given back.

#include "serving/model/expert_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "serving/model/expert_sources.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

// The calls of one layer.
struct LayerCalls {
  std::vector<ExpertId> needed;
  int64_t pairs = 0;
  std::vector<ExpertId> handed_out;
  std::vector<ExpertId> released;
  bool released_before_end = false;  // all that was handed out
  bool ended = false;
  int ready_calls_after_the_last = 0;
};

// Forwards to a real provider, one expert at a time, in an order of its own. Checks the order of
// calls as they come.
class RecordingProvider : public ExpertProvider {
 public:
  struct Record {
    std::vector<LayerCalls> layers;
    // With how many layers begun before, what was expected.
    std::vector<std::pair<size_t, std::vector<ExpertId>>> expected;
    bool last_first = false;     // hands out in the opposite order
    int64_t fail_at_layer = -1;  // NextReady throws there, in place of the last expert
  };

  RecordingProvider(std::unique_ptr<ExpertProvider> real, Record& record)
      : real_(std::move(real)), record_(record) {}

  void StepBegan() override { real_->StepBegan(); }
  void StopPrefetching() override { real_->StopPrefetching(); }
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override {
    EXPECT_TRUE(record_.layers.empty() || record_.layers.back().ended) << "a layer is open";
    LayerCalls& layer = record_.layers.emplace_back();
    layer.needed.assign(needed.begin(), needed.end());
    layer.pairs = pairs;
    real_->BeginLayer(needed, pairs);
    waiting_.clear();
    while (real_->NextReady(waiting_)) {
    }
    if (record_.last_first) std::reverse(waiting_.begin(), waiting_.end());
    next_ = 0;
  }
  void Expect(std::span<const ExpertId> experts) override {
    record_.expected.emplace_back(record_.layers.size(),
                                  std::vector<ExpertId>(experts.begin(), experts.end()));
    real_->Expect(experts);
  }
  bool IsResident(ExpertId id) const override { return real_->IsResident(id); }
  bool NextReady(std::vector<PinnedExpert>& out) override {
    LayerCalls& layer = record_.layers.back();
    EXPECT_FALSE(layer.ended);
    if (record_.fail_at_layer == layer.needed.front().layer && next_ + 1 == waiting_.size()) {
      Fail(ErrorKind::kIo, "this expert cannot be read");
    }
    if (next_ == waiting_.size()) {
      ++layer.ready_calls_after_the_last;
      return false;
    }
    out.push_back(waiting_[next_++]);
    layer.handed_out.push_back(out.back().id);
    return true;
  }
  void Release(const PinnedExpert& expert) override {
    EXPECT_FALSE(record_.layers.back().ended);
    record_.layers.back().released.push_back(expert.id);
    real_->Release(expert);
  }
  ExpertStats EndLayer() override {
    LayerCalls& layer = record_.layers.back();
    EXPECT_FALSE(layer.ended) << "a layer ends twice";
    layer.ended = true;
    layer.released_before_end = layer.released.size() == layer.handed_out.size();
    return real_->EndLayer();
  }
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t)>& keep_going) override {
    return real_->Preload(experts, keep_going);
  }
  std::vector<ResidentExpert> Residents() const override { return real_->Residents(); }
  int64_t slots() const override { return real_->slots(); }
  int64_t resident() const override { return real_->resident(); }

 private:
  std::unique_ptr<ExpertProvider> real_;
  Record& record_;
  std::vector<PinnedExpert> waiting_;
  size_t next_ = 0;
};

using Record = RecordingProvider::Record;

// Layers 1 and 3 of four are sparse, with 10 experts, top 4.
HarnessOptions OptionsWith(Record& record) {
  HarnessOptions options;
  options.make_experts = [&record](const ExpertSource& source, const ModelConfig& config) {
    ExpertLoaderOptions loader;
    const int64_t experts = config.num_layers() * config.num_experts();
    loader.budget_bytes = static_cast<uint64_t>(experts) * source.layout().slot_bytes;
    return std::make_unique<RecordingProvider>(
        std::make_unique<ExpertLoader>(source, static_cast<int>(config.num_layers()),
                                       static_cast<int>(config.num_experts()),
                                       MakeLruPolicy(experts), loader),
        record);
  };
  return options;
}

constexpr char kModel[] = "qwen2_moe_bf16_sparse_step";

// decode_from: as SequenceSlice's; by default all is prompt.
std::vector<float> RunTokens(ModelHarness& model, const std::vector<int32_t>& tokens,
                             RoutingHook* hook,
                             int64_t decode_from = std::numeric_limits<int64_t>::max()) {
  auto sequence = model.NewSequence(64);
  sequence.decode_from = decode_from;
  const ModelHarness::Piece piece = {&sequence, tokens};
  return model.Run({&piece, 1}, hook);
}

std::set<int> Indices(const std::vector<ExpertId>& ids) {
  std::set<int> indices;
  for (const ExpertId id : ids) indices.insert(id.index);
  return indices;
}

TEST(ExpertRunnerTest, AsksForWhatTheRoutingNamesAndGivesAllBack) {
  for (const int tokens : {1, 2, 5, 40}) {
    SCOPED_TRACE(tokens);
    Record record;
    ModelHarness model(FixtureModel(kModel), OptionsWith(record));
    RoutingLog routing;
    RunTokens(model, PromptOf(3, tokens, 150), &routing);
    ASSERT_EQ(record.layers.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const LayerCalls& layer = record.layers[i];
      const int64_t number = i == 0 ? 1 : 3;
      const std::vector<int32_t>& routed = routing.experts[static_cast<size_t>(number)];
      EXPECT_EQ(Indices(layer.needed), std::set<int>(routed.begin(), routed.end()));
      EXPECT_EQ(Indices(layer.needed).size(), layer.needed.size());  // distinct
      for (const ExpertId id : layer.needed) EXPECT_EQ(id.layer, number);
      EXPECT_EQ(layer.pairs, tokens * 4);
      EXPECT_EQ(layer.handed_out.size(), layer.needed.size());
      EXPECT_EQ(Indices(layer.released), Indices(layer.needed));
      EXPECT_EQ(layer.released.size(), layer.needed.size());  // each once
      EXPECT_TRUE(layer.released_before_end);
      EXPECT_TRUE(layer.ended);
      EXPECT_EQ(layer.ready_calls_after_the_last, 1);
    }
  }
}

TEST(ExpertRunnerTest, TheOrderOfArrivalChangesNoBit) {
  std::vector<uint64_t> hashes;
  for (const bool last_first : {false, true}) {
    Record record;
    record.last_first = last_first;
    ModelHarness model(FixtureModel(kModel), OptionsWith(record));
    const std::vector<float> logits = RunTokens(model, PromptOf(3, 17, 150), nullptr);
    hashes.push_back(Hash64(std::as_bytes(std::span(logits))));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

// Layer 1 wants so many experts, others four.
class Routed : public RoutingHook {
 public:
  explicit Routed(int distinct) : distinct_(distinct) {}
  void OnRouting(int64_t layer, const ForwardBatch&, std::span<int32_t> experts,
                 std::span<float>) override {
    const int distinct = layer == 1 ? distinct_ : 4;
    for (size_t i = 0; i < experts.size(); ++i) {
      experts[i] = static_cast<int32_t>(i) % distinct;
    }
  }

 private:
  int distinct_;
};

// Nine of ten experts wanted: all of the next sparse layer are expected, and no more when it has
// begun. Eight: nothing is said.
TEST(ExpertRunnerTest, NearlyAWholeLayerExpectsTheNext) {
  for (const int distinct : {8, 9, 10}) {
    SCOPED_TRACE(distinct);
    Record record;
    ModelHarness model(FixtureModel(kModel), OptionsWith(record));
    Routed hook(distinct);
    RunTokens(model, PromptOf(3, 20, 150), &hook);
    ASSERT_EQ(record.layers.size(), 2u);
    EXPECT_EQ(record.layers[0].needed.size(), static_cast<size_t>(distinct));
    if (distinct == 8) {
      EXPECT_TRUE(record.expected.empty());
      continue;
    }
    ASSERT_EQ(record.expected.size(), 2u);
    EXPECT_EQ(record.expected[0].first, 1u);  // while the first layer is open
    ASSERT_EQ(record.expected[0].second.size(), 10u);
    EXPECT_EQ(Indices(record.expected[0].second).size(), 10u);
    for (const ExpertId id : record.expected[0].second) EXPECT_EQ(id.layer, 3);
    EXPECT_EQ(record.expected[1].first, 2u);
    EXPECT_TRUE(record.expected[1].second.empty());
  }
}

// In a pass by layers half of the experts are enough: the later layers are expected as a whole. Of
// less only what is there is to stay.
TEST(ExpertRunnerTest, HalfOfALayerOfBlocksExpectsTheLaterOnes) {
  for (const int distinct : {4, 5}) {
    SCOPED_TRACE(distinct);
    Record record;
    ModelHarness model(FixtureModel(kModel), OptionsWith(record));
    Routed hook(distinct);
    const std::vector<int32_t> tokens = PromptOf(3, 20, 150);
    auto sequence = model.NewSequence(64);
    SequenceSlice slice;
    slice.num_tokens = std::ssize(tokens);
    slice.blocks = sequence.blocks;
    model.model().Forward({tokens, {&slice, 1}}, &hook, true);
    ASSERT_EQ(record.layers.size(), 2u);
    EXPECT_EQ(record.layers[0].needed.size(), static_cast<size_t>(distinct));
    ASSERT_FALSE(record.expected.empty());
    EXPECT_EQ(record.expected[0].first, 1u);  // while the first layer is open
    std::vector<ExpertId> expected;
    for (uint16_t index = 0; distinct == 5 && index < 10; ++index) {
      expected.push_back({.layer = 3, .index = index});
    }
    EXPECT_EQ(record.expected[0].second, expected);
    EXPECT_TRUE(record.expected.back().second.empty());  // nothing is left over
  }
}

// Arctic's experts read what the layer reads: they are routed, shown and asked for before the layer
// attends, and the layer asks for no others.
TEST(ExpertRunnerTest, ExpertsThatReadTheLayersInputAreAskedForBeforeItAttends) {
  class Inputs : public RoutingHook {
   public:
    explicit Inputs(ModelHarness& model) : model_(model) {}
    void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                   std::span<float>) override {
      routed[layer] = {experts.begin(), experts.end()};
      const int64_t floats = std::ssize(batch.tokens) * model_.config().hidden_size;
      const float* const hidden = model_.model().hidden();
      seen[layer] = {hidden, hidden + floats};
    }
    std::map<int64_t, std::set<int>> routed;
    std::map<int64_t, std::vector<float>> seen;

   private:
    ModelHarness& model_;
  };
  const Reference reference(FixtureModel("arctic_bf16"));
  constexpr size_t kPrompt = 1;  // of seven tokens, with recorded residual streams
  const std::vector<float> streams = reference.Floats("01.hidden");
  Record record;
  HarnessOptions options = OptionsWith(record);
  options.weight_type = options.kv_type = WeightType::kF32;
  ModelHarness model(FixtureModel("arctic_bf16"), options);
  Inputs hook(model);
  RunTokens(model, reference.prompts()[kPrompt].tokens, &hook);
  const int64_t layers = model.config().num_layers();
  ASSERT_EQ(std::ssize(record.layers), layers);
  ASSERT_EQ(std::ssize(hook.seen), layers);
  for (int64_t l = 0; l < layers; ++l) {
    SCOPED_TRACE(l);
    // What the router saw is the residual stream before the layer.
    const std::vector<float>& seen = hook.seen[l];
    for (size_t i = 0; i < seen.size(); ++i) {
      ASSERT_NEAR(seen[i], streams[static_cast<size_t>(l) * seen.size() + i], 1e-3) << i;
    }
    const auto at = static_cast<size_t>(l);
    const auto asked = std::find_if(
        record.expected.begin(), record.expected.end(),
        [&](const auto& expected) { return expected.first == at && !expected.second.empty(); });
    ASSERT_NE(asked, record.expected.end());
    for (const ExpertId id : asked->second) EXPECT_EQ(id.layer, l);
    EXPECT_EQ(Indices(asked->second), hook.routed[l]);
    EXPECT_EQ(Indices(record.layers[at].needed), hook.routed[l]);
  }
  EXPECT_TRUE(record.expected.back().second.empty());  // nothing is left over
}

// Routes every token to three of the experts 0 to 7 and, with the least weight, to expert 8.
class RoutedWithALast : public RoutingHook {
 public:
  void OnRouting(int64_t, const ForwardBatch&, std::span<int32_t> experts,
                 std::span<float> weights) override {
    for (size_t i = 0; i < experts.size(); ++i) {
      experts[i] = i % 4 == 3 ? 8 : static_cast<int32_t>(i / 4 * 3 + i % 4) % 8;
      weights[i] = 0.4f - 0.1f * static_cast<float>(i % 4);
    }
  }
};

// An expert that comes a layer later because only deferred pairs want it is wanted all the same:
// with it nine of ten are, and the next layer is expected as a whole. The experts that have stayed
// in the cache since come at once.
TEST(ExpertRunnerTest, DeferredExpertsAreWantedAndComeLateOnlyIfTheyAreMissing) {
  Record record;
  HarnessOptions options = OptionsWith(record);
  options.defer_experts = 1;
  ModelHarness model(FixtureModel(kModel), options);
  RoutedWithALast hook;
  const std::vector<int32_t> tokens = PromptOf(3, 20, 150);
  const std::set<int> at_once = {0, 1, 2, 3, 4, 5, 6, 7};
  std::set<int> all = at_once;
  all.insert(8);

  const std::vector<float> cold = RunTokens(model, tokens, &hook, 0);
  ASSERT_EQ(record.layers.size(), 3u);
  EXPECT_EQ(Indices(record.layers[0].needed), at_once);
  EXPECT_EQ(record.layers[1].needed, (std::vector{ExpertId{.layer = 1, .index = 8}}));
  EXPECT_EQ(record.layers[1].pairs, 20);
  EXPECT_EQ(Indices(record.layers[2].needed), all);  // the last layer defers nothing
  ASSERT_FALSE(record.expected.empty());
  EXPECT_EQ(record.expected[0].first, 1u);
  std::vector<ExpertId> expected = {{.layer = 1, .index = 8}};
  for (uint16_t index = 0; index < 10; ++index) expected.push_back({.layer = 3, .index = index});
  EXPECT_EQ(record.expected[0].second, expected);

  record.layers.clear();
  const std::vector<float> warm = RunTokens(model, tokens, &hook, 0);
  ASSERT_EQ(record.layers.size(), 2u);
  EXPECT_EQ(Indices(record.layers[0].needed), all);
  EXPECT_EQ(record.layers[0].pairs, 80);
  EXPECT_EQ(Hash64(std::as_bytes(std::span(warm))), Hash64(std::as_bytes(std::span(cold))));
}

// Both places expect their part of the next layer, which then wants nothing of one of them: that
// one is told that nothing is expected any more, though it has no layer to run.
TEST(ExpertRunnerTest, APlaceWithoutExpertsOfALayerIsToldWhatIsExpected) {
  const ModelConfig config = LoadModelConfig(FixtureModel(kModel));
  const Checkpoint checkpoint = Checkpoint::Open(FixtureModel(kModel));
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  const auto source = MakeCheckpointExpertSource(config, WeightType::kBf16, checkpoint, kernels);
  const auto layers = static_cast<int>(config.num_layers());
  const auto experts = static_cast<int>(config.num_experts());
  const ExpertPlacement placement(ExpertGrid(layers, experts), std::vector{-1, -1});
  constexpr int64_t kTokens = 20;

  // A runner over so many places, and what their providers are asked.
  struct Runner {
    std::vector<Record> records;
    std::vector<std::unique_ptr<ExpertProvider>> providers;
    std::vector<std::unique_ptr<ThreadPool>> pools;
    std::unique_ptr<ExpertRunner> runner;
  };
  const auto make = [&](Runner& made, size_t places) {
    made.records.resize(places);
    ExpertPlaces all;
    all.placement = places > 1 ? &placement : nullptr;
    for (Record& record : made.records) {
      made.providers.push_back(OptionsWith(record).make_experts(*source, config));
      made.pools.push_back(std::make_unique<ThreadPool>(1));
      all.places.push_back({made.providers.back().get(), made.pools.back().get(), {}});
    }
    made.runner =
        std::make_unique<ExpertRunner>(config, source->layout(), std::move(all), kernels, kTokens);
  };
  Runner one;
  Runner two;
  make(one, 1);
  make(two, 2);

  const auto hidden = static_cast<size_t>(config.hidden_size);
  std::vector<float> x(kTokens * hidden);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const ExpertInputs inputs = {.tokens = kTokens, .x = x.data(), .x_stride = config.hidden_size};
  const auto pairs = static_cast<size_t>(kTokens * config.top_k());
  const std::vector<float> weights(pairs, 0.25f);
  ThreadPool pool(1);
  const auto sum_of = [&](Runner& runner, int64_t layer, const std::vector<int32_t>& ids) {
    std::vector<float> y(kTokens * hidden, 0.0f);
    runner.runner->Run(layer, inputs, {.ids = ids.data(), .weights = weights.data()}, pool);
    const ExpertOutputs& outputs = runner.runner->outputs();
    CombineSlots(pool, kernels, outputs.slot_out, outputs.weights, kTokens, config.top_k(),
                 config.hidden_size, y.data(), outputs.mask);
    return y;
  };

  std::vector<int32_t> all_experts(pairs);
  std::vector<int32_t> first_place(pairs);
  std::vector<int32_t> of_first;
  for (int e = 0; e < experts; ++e) {
    if (placement.device(3 * experts + e) == 0) of_first.push_back(e);
  }
  ASSERT_GE(std::ssize(of_first), config.top_k());
  for (size_t i = 0; i < pairs; ++i) {
    all_experts[i] = static_cast<int32_t>(i) % experts;
    first_place[i] = of_first[i % of_first.size()];
  }
  EXPECT_EQ(sum_of(two, 1, all_experts), sum_of(one, 1, all_experts));
  EXPECT_EQ(sum_of(two, 3, first_place), sum_of(one, 3, first_place));

  EXPECT_EQ(two.records[0].layers.size(), 2u);
  const Record& second = two.records[1];
  EXPECT_EQ(second.layers.size(), 1u);
  ASSERT_EQ(second.expected.size(), 2u);
  EXPECT_EQ(second.expected[0].second.size(), static_cast<size_t>(experts) - of_first.size());
  for (const ExpertId id : second.expected[0].second) EXPECT_EQ(id.layer, 3);
  EXPECT_TRUE(second.expected[1].second.empty());
}

// What cannot be had ends the layer, and what was expected; the next pass is none the worse.
TEST(ExpertRunnerTest, AFailedLayerIsEnded) {
  const std::vector<int32_t> tokens = PromptOf(3, 40, 150);
  Record plain;
  ModelHarness right(FixtureModel(kModel), OptionsWith(plain));
  const std::vector<float> expected = RunTokens(right, tokens, nullptr);

  Record record;
  ModelHarness model(FixtureModel(kModel), OptionsWith(record));
  for (const int64_t layer : {1, 3}) {
    record.fail_at_layer = layer;
    record.layers.clear();
    record.expected.clear();
    EXPECT_THROW(RunTokens(model, tokens, nullptr), Error);
    ASSERT_EQ(record.layers.size(), layer == 1 ? 1u : 2u);
    EXPECT_TRUE(record.layers.back().ended);
    EXPECT_EQ(record.layers.back().handed_out.size() + 1, record.layers.back().needed.size());
    const bool expects = !record.expected.empty() && !record.expected.back().second.empty();

    EXPECT_EQ(expects, layer == 1);  // all of layer 3, which then did not begin

    record.fail_at_layer = -1;
    record.layers.clear();
    record.expected.clear();
    const std::vector<float> logits = RunTokens(model, tokens, nullptr);
    EXPECT_EQ(Hash64(std::as_bytes(std::span(logits))), Hash64(std::as_bytes(std::span(expected))));
    if (expects) {  // forgotten before anything else
      ASSERT_FALSE(record.expected.empty());
      EXPECT_EQ(record.expected[0].first, 0u);
      EXPECT_TRUE(record.expected[0].second.empty());
    }
  }
}

}  // namespace
}  // namespace moesaic
