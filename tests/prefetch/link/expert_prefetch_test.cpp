// Prefetching by the loader, over a reader that the test drives and a predictor that says what the
// test says.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/predict/step_predictor.h"
#include "tests/prefetch/fake_reader.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

constexpr int kTopK = 2;

// States the same probability for an expert at every distance.
class ScriptedPredictor final : public Predictor {
 public:
  explicit ScriptedPredictor(const PredictorShape& shape)
      : shape_(shape), probability_(static_cast<size_t>(shape.num_layers * shape.num_experts)) {}
  void Say(int layer, int expert, float probability) {
    probability_[static_cast<size_t>(layer * shape_.num_experts + expert)] = probability;
  }

  const char* name() const override { return "scripted"; }
  void BeginRequest(int) override {}
  void BeginIteration(int, int32_t, int64_t) override { last_ = -1; }
  void Observe(int, int layer, std::span<const int32_t> experts) override {
    last_ = layer;
    observed.assign(experts.begin(), experts.end());
  }
  void Predict(int, int distance, std::span<float> probability) override {
    const int layer = (last_ + distance) % shape_.num_layers;
    std::copy_n(probability_.begin() + layer * shape_.num_experts, shape_.num_experts,
                probability.begin());
  }
  void EndRequest(int) override {}
  uint64_t memory_bytes() const override { return 0; }

  std::vector<int32_t> observed;

 private:
  PredictorShape shape_;
  std::vector<float> probability_;
  int last_ = -1;
};

TestSourceShape DirectShape() {
  TestSourceShape shape;
  shape.piece_bytes = {5 * 4096};
  shape.direct = true;
  return shape;
}

struct RigOptions {
  TestSourceShape shape = DirectShape();
  int64_t slots = 16;
  int max_retries = 2;
  int pack_threads = 0;
};

PredictorShape ShapeOf(const TestSourceShape& shape) {
  return {shape.num_layers - static_cast<int>(shape.dense_layers.size()), shape.num_experts, kTopK,
          1};
}

// Every expert is five packets; prefetches may have two in flight.
class Rig {
 public:
  explicit Rig(const RigOptions& setup)
      : source(setup.shape),
        disk(source.Contents()),
        predictor(ShapeOf(setup.shape)),
        step_predictor(ShapeOf(setup.shape), predictor, {},
                       SparseLayers(source, setup.shape.num_layers)) {
    ExpertLoaderOptions options;
    options.budget_bytes = static_cast<uint64_t>(setup.slots) * source.layout().slot_bytes;
    options.packet_bytes = 4096;
    options.depth = 8;
    options.max_retries = setup.max_retries;
    options.pack_threads = setup.pack_threads;
    options.step_predictor = &step_predictor;
    loader = std::make_unique<ExpertLoader>(source, setup.shape.num_layers, setup.shape.num_experts,
                                            nullptr, options,
                                            std::make_unique<ManualReader>(disk, 8, true));
    step_predictor.BeginRequest(0);
  }
  ~Rig() { disk.SetAutomatic(true); }

  void BeginStep() {
    const StepRequest request = {0, 7, 0, 1};
    step_predictor.BeginStep({&request, 1});
    loader->StepBegan();
  }
  ExpertStats RunLayer(int layer, const std::vector<int>& experts) {
    const std::vector<int32_t> routed(experts.begin(), experts.end());
    if (routed.size() == kTopK) step_predictor.OnRouting(layer, routed);
    loader->BeginLayer(source.Ids(layer, experts));
    return FinishLayer();
  }
  ExpertStats FinishLayer() {
    std::vector<PinnedExpert> ready;
    while (loader->NextReady(ready)) {
      for (const PinnedExpert& pinned : ready) {
        EXPECT_TRUE(source.IsBlobOf(pinned.id, pinned.blob));
        loader->Release(pinned);
      }
      ready.clear();
    }
    return loader->EndLayer();
  }
  bool IsOf(const ReadRequest& read, int layer, int expert) const {
    const Extent extent = source.Extents(source.Id(layer, expert))[0];
    return read.file == extent.file && read.offset >= extent.offset &&
           read.offset < extent.offset + extent.bytes;
  }

  TestSource source;
  ManualDisk disk;
  ScriptedPredictor predictor;
  StepPredictor step_predictor;
  std::unique_ptr<ExpertLoader> loader;
};

template <typename Condition>
void WaitFor(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

TEST(ExpertPrefetchTest, IdleLinkReadsWhatThePredictorSays) {
  Rig rig({});
  rig.BeginStep();
  rig.predictor.Say(1, 3, 0.95f);
  rig.predictor.Say(1, 4, 0.1f);  // not worth the link's time
  ExpertStats stats = rig.RunLayer(0, {0, 1});
  EXPECT_EQ(rig.predictor.observed, (std::vector<int32_t>{0, 1}));
  WaitFor([&] { return rig.loader->cache_counters().inserted == 3; });
  stats += rig.RunLayer(1, {3, 4});
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.misses, 3u);
  EXPECT_EQ(stats.prefetched, 1u);
  EXPECT_EQ(stats.prefetched_used, 1u);
  EXPECT_EQ(stats.bytes_read, 4 * rig.source.expert_bytes());
}

TEST(ExpertPrefetchTest, LayersWithoutExpertsAreNotCounted) {
  TestSourceShape shape = DirectShape();
  shape.dense_layers = {0, 2};
  Rig rig({.shape = shape});
  rig.BeginStep();
  rig.predictor.Say(1, 5, 0.95f);  // the second that has experts: layer 3 of the model
  rig.RunLayer(1, {0, 1});
  WaitFor([&] { return rig.loader->cache_counters().inserted == 3; });
  EXPECT_EQ(rig.RunLayer(3, {5, 6}).hits, 1u);
}

TEST(ExpertPrefetchTest, LayersOvertakePrefetches) {
  Rig rig({});
  rig.predictor.Say(1, 3, 0.95f);
  rig.disk.SetAutomatic(false);
  rig.BeginStep();
  rig.disk.WaitForPending(2);  // two of the five packets
  rig.loader->BeginLayer(rig.source.Ids(0, {6}));
  std::vector<ReadRequest> reads = rig.disk.WaitForPending(7);
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_TRUE(i < 2 ? rig.IsOf(reads[i], 1, 3) : rig.IsOf(reads[i], 0, 6)) << i;
  }
  // The prefetch goes on when the layer has its expert.
  rig.disk.Complete(2);
  rig.disk.Complete(5);
  reads = rig.disk.WaitForPending(2);
  EXPECT_TRUE(rig.IsOf(reads[0], 1, 3));
  EXPECT_EQ(rig.FinishLayer().misses, 1u);
  // Now its layer waits for it: the rest comes at once.
  rig.loader->BeginLayer(rig.source.Ids(1, {3}));
  EXPECT_EQ(rig.disk.WaitForPending(3).size(), 3u);
  rig.disk.SetAutomatic(true);
  const ExpertStats stats = rig.FinishLayer();
  EXPECT_EQ(stats.late_hits, 1u);
  EXPECT_EQ(stats.prefetched_used, 1u);
}

TEST(ExpertPrefetchTest, StalePrefetchesAreCancelled) {
  Rig rig({});
  rig.RunLayer(0, {0, 1});
  rig.predictor.Say(1, 3, 0.95f);
  rig.disk.SetAutomatic(false);
  rig.BeginStep();
  rig.disk.WaitForPending(2);
  const uint64_t submitted = rig.disk.submitted();
  rig.predictor.Say(1, 3, 0.05f);
  ExpertStats stats = rig.RunLayer(0, {0, 1});
  rig.disk.Complete(2);
  WaitFor([&] { return rig.loader->transfer_counters().cancelled == 1; });
  EXPECT_EQ(rig.disk.submitted(), submitted);
  EXPECT_EQ(rig.loader->resident(), 2);
  rig.disk.SetAutomatic(true);
  stats += rig.RunLayer(1, {3, 4});
  EXPECT_EQ(stats.misses, 2u);
  EXPECT_EQ(stats.prefetched_used, 0u);
  // What was read for nothing is counted.
  EXPECT_EQ(stats.bytes_read, 2 * rig.source.expert_bytes() + 2 * 4096);
}

TEST(ExpertPrefetchTest, PrefetchesYieldTheirSlotsToALayer) {
  Rig rig({.slots = 4});
  rig.predictor.Say(1, 3, 0.95f);
  rig.disk.SetAutomatic(false);
  rig.BeginStep();
  rig.disk.WaitForPending(2);
  rig.loader->BeginLayer(rig.source.Ids(0, {4, 5, 6, 7}));
  rig.disk.SetAutomatic(true);
  EXPECT_EQ(rig.FinishLayer().misses, 4u);
  EXPECT_EQ(rig.loader->transfer_counters().cancelled, 1u);
}

TEST(ExpertPrefetchTest, FewSlotsAreLeftToTheLayers) {
  for (const int64_t slots : {1, 3}) {
    Rig rig({.slots = slots});
    EXPECT_FALSE(rig.loader->prefetching());
    for (int e = 0; e < 8; ++e) rig.predictor.Say(1, e, 0.95f);
    rig.BeginStep();
    ExpertStats stats = rig.RunLayer(0, {0, 1});
    stats += rig.RunLayer(1, {0, 1, 2, 3, 4, 5, 6, 7});
    EXPECT_EQ(stats.misses, 10u);
    EXPECT_EQ(stats.prefetched, 0u);
  }
}

TEST(ExpertPrefetchTest, NothingIsReadAheadForRequestsThatHaveEnded) {
  Rig rig({});
  rig.disk.SetAutomatic(false);
  rig.BeginStep();
  rig.predictor.Say(1, 3, 0.95f);
  rig.step_predictor.EndRequest(0);
  EXPECT_TRUE(rig.step_predictor.idle());
  rig.loader->StopPrefetching();
  rig.disk.SetAutomatic(true);
  const ExpertStats stats = rig.RunLayer(0, {0, 1});
  EXPECT_EQ(stats.prefetched, 0u);
}

TEST(ExpertPrefetchTest, FailedPrefetchFailsNobody) {
  Rig rig({.max_retries = 0});
  std::atomic<int> tries = 0;
  rig.disk.SetFault([&](const ReadRequest& read) -> int64_t {
    if (!rig.IsOf(read, 1, 3)) return 0;
    ++tries;
    return -EIO;
  });
  rig.predictor.Say(1, 3, 0.95f);
  rig.BeginStep();
  WaitFor([&] { return rig.loader->transfer_counters().failed == 1; });
  const int tried = tries;
  EXPECT_EQ(rig.RunLayer(0, {0, 1}).misses, 2u);
  EXPECT_EQ(rig.RunLayer(2, {0, 1}).misses, 2u);
  EXPECT_EQ(tries, tried);  // it is not tried again for nobody
  // The layer that needs it gets the error.
  rig.loader->BeginLayer(rig.source.Ids(1, {3}));
  EXPECT_THROW(rig.FinishLayer(), Error);
  rig.loader->EndLayer();
  rig.disk.SetFault(nullptr);
  EXPECT_EQ(rig.RunLayer(1, {3, 4}).misses, 2u);
}

TEST(ExpertPrefetchTest, WhatALayerCouldReadIsReadAheadAgain) {
  Rig rig({.slots = 4, .max_retries = 0});
  rig.disk.SetFault([](const ReadRequest&) -> int64_t { return -EIO; });
  rig.predictor.Say(1, 3, 0.95f);
  rig.BeginStep();
  WaitFor([&] { return rig.loader->transfer_counters().failed == 1; });
  rig.disk.SetFault(nullptr);
  EXPECT_EQ(rig.RunLayer(1, {3, 4}).misses, 2u);
  EXPECT_EQ(rig.RunLayer(0, {4, 5, 6, 7}).misses, 4u);  // in all slots
  rig.BeginStep();
  WaitFor([&] { return rig.loader->transfer_counters().done == 2 + 4 + 1; });
  EXPECT_EQ(rig.RunLayer(1, {3, 4}).prefetched_used, 1u);
}

TEST(ExpertPrefetchTest, LayerTriesAgainWhatAPrefetchCouldNotRead) {
  Rig rig({.max_retries = 0});
  rig.predictor.Say(1, 3, 0.95f);
  rig.disk.SetAutomatic(false);
  rig.BeginStep();
  rig.disk.WaitForPending(2);
  rig.loader->BeginLayer(rig.source.Ids(1, {3}));
  bool failed = false;
  rig.disk.SetFault(
      [&](const ReadRequest&) -> int64_t { return std::exchange(failed, true) ? 0 : -EIO; });
  rig.disk.SetAutomatic(true);
  EXPECT_EQ(rig.FinishLayer().late_hits, 1u);
  EXPECT_EQ(rig.loader->transfer_counters().failed, 1u);
}

// Steps of random routing and random predictions with little room: whatever is fetched ahead, each
// layer gets its experts.
TEST(ExpertPrefetchTest, RandomSteps) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const bool direct : {true, false}) {
    for (const int pack_threads : {0, 1}) {
      TestSourceShape shape;
      if (direct) shape = DirectShape();
      Rig rig({.shape = shape,
               .slots = 4 + static_cast<int>(random() % 8),
               .pack_threads = pack_threads});
      ExpertStats stats;
      uint64_t needed = 0;
      for (int step = 0; step < 100; ++step) {
        rig.BeginStep();
        for (int layer = 0; layer < 4; ++layer) {
          for (int e = 0; e < 8; ++e) {
            rig.predictor.Say((layer + 1) % 4, e, static_cast<float>(random() % 100) / 100);
          }
          std::vector<int> experts;
          const size_t count = random() % 4 == 0 ? 8 : kTopK;
          while (experts.size() < count) {
            const int expert = static_cast<int>(random() % 8);
            if (std::find(experts.begin(), experts.end(), expert) == experts.end()) {
              experts.push_back(expert);
            }
          }
          stats += rig.RunLayer(layer, experts);
          needed += count;
        }
      }
      EXPECT_EQ(stats.hits + stats.late_hits + stats.misses, needed);
      EXPECT_GT(stats.prefetched, 0u);
      rig.loader->Clear();
      EXPECT_EQ(rig.loader->resident(), 0);
    }
  }
}

}  // namespace
}  // namespace moesaic
