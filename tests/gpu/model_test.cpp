// A whole model whose experts are computed on devices: close to the CPU's logits and to the
// reference, and the same bits wherever experts were, however a prompt was cut. Linked twice, like
// the kernels' tests: for a GPU, and for the host on emulated devices.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "serving/model/sampler.h"
#include "tests/gpu/kernel_machine.h"
#include "tests/gpu/sample_model.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/relative_distance.h"
#include "tests/serving/model/replayed_routing.h"

namespace moesaic {
namespace {

constexpr int kPromptTokens = 9;
constexpr int kSteps = 2;

// Relative L2 distance.
uint64_t HashOf(const std::vector<float>& values) {
  return Hash64(std::as_bytes(std::span(values)));
}

// Logits of a prompt, cut into chunks, and of some decode steps.
std::vector<float> Logits(ModelHarness& model, int64_t chunk, RoutingHook* hook = nullptr) {
  const std::vector<int32_t> tokens =
      PromptOf(3, kPromptTokens + kSteps, static_cast<int>(model.config().vocab_size));
  auto sequence = model.NewSequence(kPromptTokens + kSteps);
  sequence.decode_from = kPromptTokens;
  std::vector<float> all =
      model.Prefill(sequence, std::span(tokens).first(kPromptTokens), chunk, hook);
  for (size_t i = kPromptTokens; i < tokens.size(); ++i) {
    const ModelHarness::Piece piece = {&sequence, {tokens[i]}};
    const std::vector<float> logits = model.Run({&piece, 1}, hook);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

class CudaModelTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.max_batch_tokens = 32;
    options_.max_context_tokens = 64;
    options_.kv_blocks = 8;
    UseDevices(1);
  }

  // Of `slots` experts each.
  void UseDevices(int devices, int64_t slots = 256) {
    std::string why_not;
    options_.given_devices.clear();
    machine_ = MakeKernelMachine(uint64_t{48} << 20, why_not, static_cast<size_t>(devices));
    if (machine_ == nullptr) GTEST_SKIP() << "SKIPPED: " << why_not;
    for (size_t d = 0; d < static_cast<size_t>(devices); ++d) {
      options_.given_devices.push_back(&machine_->device(d));
    }
    options_.kernels = &machine_->kernels();
    options_.devices = devices;
    options_.device_slots = slots;
  }

  std::vector<float> OnTheHost(const std::string& directory = SampleModel(),
                               RoutingHook* hook = nullptr) {
    HarnessOptions host = options_;
    host.devices = 0;
    host.kernels = nullptr;
    host.dense_on_device = false;
    ModelHarness model(directory, host);
    return Logits(model, kPromptTokens, hook);
  }

  std::unique_ptr<KernelMachine> machine_;
  HarnessOptions options_;
};

// The tolerances are those of the CPU's class of bf16 activations (tests/serving/model).
TEST_F(CudaModelTest, LogitsAreThoseOfTheReference) {
  const Reference reference(SampleModel());
  const std::vector<int32_t>& prompt = reference.prompts()[0].tokens;
  options_.max_batch_tokens = static_cast<int64_t>(prompt.size());
  ModelHarness model(SampleModel(), options_);
  auto sequence = model.NewSequence(options_.max_context_tokens);
  std::vector<float> logits = model.Prefill(sequence, prompt, options_.max_batch_tokens);
  const std::vector<float> expected = reference.Floats("00.logits");
  logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(expected.size()));
  EXPECT_LE(RelativeDistance(logits, expected), 1.5e-2);
}

TEST_F(CudaModelTest, LogitsAreCloseToTheHosts) {
  for (const auto& [type, tolerance] :
       {std::pair(WeightType::kBf16, 1.5e-2),
        // The host rounds activations to int8.
        std::pair(WeightType::kInt8, 5e-2), std::pair(WeightType::kInt4, 5e-2)}) {
    options_.weight_type = type;
    UseDevices(1);
    const std::vector<float> expected = OnTheHost();
    ModelHarness model(SampleModel(), options_);
    const std::vector<float> actual = Logits(model, kPromptTokens);
    EXPECT_LE(RelativeDistance(actual, expected), tolerance) << WeightTypeName(type);
    EXPECT_EQ(model.stats().experts.on_host, 0u);
    // The device did compute: it rounds otherwise.
    EXPECT_NE(HashOf(actual), HashOf(expected)) << WeightTypeName(type);
  }
}

// Types that experts alone have, biases and a clamped activation. The dense part is the host's, and
// so is the routing: random routers tie often.
TEST_F(CudaModelTest, ExpertsOfOtherModelsAreCloseToTheHosts) {
  for (const auto& [name, type] : {std::pair("gpt_oss_mxfp4", WeightType::kMxfp4F32),
                                   std::pair("gpt_oss_bf16_window", WeightType::kBf16),
                                   std::pair("deepseek_v3_fp8", WeightType::kFp8),
                                   std::pair("kimi_k25_int4", WeightType::kW4A16)}) {
    const std::string directory = FixtureModel(name);
    if (!std::filesystem::exists(directory)) GTEST_SKIP() << "SKIPPED: there is no " << directory;
    SCOPED_TRACE(name);
    options_.weight_type = type;
    RoutingLog routing;
    const std::vector<float> expected = OnTheHost(directory, &routing);
    uint64_t hash = 0;
    for (const int64_t slots : {256, 3}) {
      UseDevices(1, slots);
      ModelHarness model(directory, options_);
      ReplayedRouting replayed(routing, model.config().top_k());
      const std::vector<float> actual = Logits(model, kPromptTokens, &replayed);
      EXPECT_LE(RelativeDistance(actual, expected), 1.5e-2);
      EXPECT_LE(replayed.largest_difference(), 5e-2);
      EXPECT_EQ(model.stats().experts.on_host, 0u);
      EXPECT_NE(HashOf(actual), HashOf(expected));
      if (slots == 256) hash = HashOf(actual);
      EXPECT_EQ(HashOf(actual), hash) << "placement changed a bit";
    }
  }
}

// Architecture, rule 1, within the class: every expert on a device, whichever, however few fit.
TEST_F(CudaModelTest, PlacementDoesNotChangeABit) {
  uint64_t expected = 0;
  {
    ModelHarness all(SampleModel(), options_);
    expected = HashOf(Logits(all, kPromptTokens));
    EXPECT_EQ(all.stats().experts.evictions, 0u);
  }
  struct Case {
    int devices;
    int64_t slots;
    int64_t chunk;
    int threads;
  };
  for (const Case& c : {Case{1, 1, kPromptTokens, 1}, Case{1, 40, 4, 2}, Case{3, 9, 1, 2}}) {
    UseDevices(c.devices, c.slots);
    options_.threads = c.threads;
    ModelHarness model(SampleModel(), options_);
    EXPECT_EQ(HashOf(Logits(model, c.chunk)), expected)
        << c.devices << " devices of " << c.slots << " slots, chunks of " << c.chunk;
    EXPECT_EQ(model.stats().experts.on_host, 0u);
    EXPECT_GT(model.stats().experts.evictions, 0u);
  }
}

// Likewise with experts that enter one layer later, which are missing more or less often.
TEST_F(CudaModelTest, DeferralDoesNotDependOnPlacement) {
  const auto hash = [&](int devices, int64_t slots) {
    UseDevices(devices, slots);
    ModelHarness model(SampleModel(), options_);
    const uint64_t value = HashOf(Logits(model, kPromptTokens));
    EXPECT_EQ(model.stats().experts.on_host, 0u);
    EXPECT_EQ(model.stats().experts.deferred > 0, options_.defer_experts > 0);
    return value;
  };
  const uint64_t at_once = hash(1, 9);
  options_.defer_experts = 2;
  const uint64_t expected = hash(1, 256);
  EXPECT_NE(expected, at_once);
  EXPECT_EQ(hash(1, 9), expected);
  EXPECT_EQ(hash(2, 1), expected);
}

// Attention, MLPs and head on the device too.
TEST_F(CudaModelTest, DenseLogitsAreThoseOfTheReference) {
  const Reference reference(SampleModel());
  const std::vector<int32_t>& prompt = reference.prompts()[0].tokens;
  options_.max_batch_tokens = static_cast<int64_t>(prompt.size());
  options_.dense_on_device = true;
  ModelHarness model(SampleModel(), options_);
  auto sequence = model.NewSequence(options_.max_context_tokens);
  std::vector<float> logits = model.Prefill(sequence, prompt, 16);
  const std::vector<float> expected = reference.Floats("00.logits");
  logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(expected.size()));
  EXPECT_LE(RelativeDistance(logits, expected), 1.5e-2);
}

TEST_F(CudaModelTest, DenseLogitsDoNotDependOnPlacementOrCompany) {
  options_.dense_on_device = true;
  uint64_t expected = 0;
  {
    ModelHarness all(SampleModel(), options_);
    expected = HashOf(Logits(all, kPromptTokens));
  }
  UseDevices(2, 7);
  options_.threads = 2;
  ModelHarness model(SampleModel(), options_);
  // Another sequence has come before and has the first blocks.
  auto other = model.NewSequence(20);
  const ModelHarness::Piece piece = {&other, {1, 2, 3, 4, 5}};
  model.Run({&piece, 1});
  EXPECT_EQ(HashOf(Logits(model, 2)), expected);
}

// The sample model has two KV heads: of three devices one has none.
TEST_F(CudaModelTest, ShardedDenseLogitsHaveTheBitsOfOneDevice) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt4}) {
    options_.weight_type = type;
    options_.threads = 1;
    options_.dense_on_device = true;
    UseDevices(1);
    uint64_t expected = 0;
    {
      ModelHarness one(SampleModel(), options_);
      expected = HashOf(Logits(one, kPromptTokens));
    }
    options_.dense_on_device = false;
    options_.dense_sharded = true;
    for (const int devices : {1, 2, 3}) {
      UseDevices(devices, 7 + 20 * devices);
      options_.threads = devices;
      ModelHarness model(SampleModel(), options_);
      EXPECT_EQ(HashOf(Logits(model, devices == 2 ? 2 : kPromptTokens)), expected)
          << devices << " devices, " << WeightTypeName(type);
      EXPECT_EQ(model.stats().experts.on_host, 0u);
    }
    options_.dense_sharded = false;
  }
}

// Decode steps of several sequences, their number not a power of two, over the end of a chunk.
TEST_F(CudaModelTest, CapturedDecodeStepsHaveTheSameBits) {
  constexpr int kDecoding = 3;
  constexpr int64_t kShared = 240;  // of 256, a chunk
  options_.dense_on_device = true;
  options_.max_context_tokens = 272;
  options_.kv_blocks = 24;
  const auto run = [&](bool capture, bool whole, int64_t& captured_early, int64_t& captured_late) {
    options_.capture_dense = capture;
    options_.capture_steps = whole;
    UseDevices(1);
    ModelHarness model(SampleModel(), options_);
    const auto vocab = static_cast<int>(model.config().vocab_size);
    std::vector<ModelHarness::Sequence> sequences;
    for (int s = 0; s < kDecoding; ++s) {
      sequences.push_back(model.NewSequence(32));
      model.Prefill(sequences.back(), PromptOf(s, 13, vocab), 16);
    }
    // As if one block had been computed many times before the last sequence's own.
    ModelHarness::Sequence& longest = sequences.back();
    const auto full = model.NewSequence(16);
    auto filler = full;
    model.Prefill(filler, PromptOf(9, 16, vocab), 16);
    longest.blocks.insert(longest.blocks.begin(), kShared / kKvBlockTokens, full.blocks[0]);
    longest.length += kShared;
    std::vector<float> all;
    for (int step = 0; step < 5; ++step) {
      std::vector<ModelHarness::Piece> pieces;
      pieces.reserve(kDecoding);
      for (int s = 0; s < kDecoding; ++s) {
        pieces.push_back({&sequences[static_cast<size_t>(s)], {7 * step + s}});
      }
      const std::vector<float> logits = model.Run(pieces);
      all.insert(all.end(), logits.begin(), logits.end());
      if (step == 0) captured_early = model.model().dense().captured();
      if (step == 2) {  // the same kind of step
        EXPECT_EQ(model.model().dense().captured(), captured_early);
      }
    }
    captured_late = model.model().dense().captured();
    EXPECT_EQ(model.model().dense().whole_steps(), capture && whole ? 5 : 0);
    EXPECT_EQ(longest.length, kShared + 13 + 5);
    return HashOf(all);
  };
  int64_t early = 0;
  int64_t late = 0;
  const uint64_t plain = run(false, true, early, late);
  EXPECT_EQ(late, 0);
  EXPECT_EQ(run(true, false, early, late), plain);
  EXPECT_GT(early, 1);
  EXPECT_EQ(late, 2 * early);  // for contexts of one chunk and of two
  EXPECT_EQ(run(true, true, early, late), plain);
  EXPECT_EQ(early, 1);
  EXPECT_EQ(late, 2);
}

// Whatever a step finds on the device, and however the host comes by the rest: the bits and the
// routing that it sees are those of steps that go layer by layer.
TEST_F(CudaModelTest, WholeStepsDoNotDependOnPlacement) {
  constexpr int kDecoding = 3;
  options_.dense_on_device = true;
  struct Seen {
    uint64_t logits = 0;
    std::vector<std::vector<int32_t>> routing;
    ExpertStats experts;
    int64_t whole_steps = 0;
  };
  const auto run = [&](int devices, int64_t slots, bool whole) {
    options_.capture_steps = whole;
    UseDevices(devices, slots);
    ModelHarness model(SampleModel(), options_);
    const auto vocab = static_cast<int>(model.config().vocab_size);
    std::vector<ModelHarness::Sequence> sequences;
    for (int s = 0; s < kDecoding; ++s) {
      sequences.push_back(model.NewSequence(32));
      model.Prefill(sequences.back(), PromptOf(s, 5 + s, vocab), 16);
    }
    const StepStats before = model.stats();
    std::vector<float> all;
    RoutingLog recorder;
    for (int step = 0; step < 4; ++step) {
      std::vector<ModelHarness::Piece> pieces;
      pieces.reserve(kDecoding);
      for (int s = 0; s < kDecoding; ++s) {
        pieces.push_back({&sequences[static_cast<size_t>(s)], {11 * step + s}});
      }
      const std::vector<float> logits = model.Run(pieces, &recorder);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    Seen seen = {HashOf(all), recorder.experts, model.stats().experts,
                 model.model().dense().whole_steps()};
    seen.experts.hits -= before.experts.hits;
    seen.experts.late_hits -= before.experts.late_hits;
    seen.experts.misses -= before.experts.misses;
    seen.experts.on_host -= before.experts.on_host;
    return seen;
  };
  const Seen expected = run(1, 256, false);
  EXPECT_EQ(expected.whole_steps, 0);
  struct Case {
    int devices;
    int64_t slots;
    MissMode miss;
  };
  for (const Case& c :
       {Case{1, 256, MissMode::kFetch}, Case{1, 40, MissMode::kFetch}, Case{1, 9, MissMode::kFetch},
        Case{1, 1, MissMode::kFetch}, Case{3, 9, MissMode::kFetch}}) {
    options_.miss = c.miss;
    const Seen seen = run(c.devices, c.slots, true);
    EXPECT_EQ(seen.logits, expected.logits) << c.devices << " devices of " << c.slots << " slots";
    EXPECT_EQ(seen.routing, expected.routing) << c.slots;
    EXPECT_EQ(seen.whole_steps, 4) << c.slots;
    EXPECT_EQ(seen.experts.hits + seen.experts.misses + seen.experts.late_hits,
              expected.experts.hits + expected.experts.misses + expected.experts.late_hits);
    EXPECT_EQ(seen.experts.on_host, 0u);
    if (c.slots < 256) {
      EXPECT_GT(seen.experts.misses, 0u) << c.slots;
    }
  }
}

// Who may replace routing is waited for.
TEST_F(CudaModelTest, AStepWhoseRoutingIsReplacedGoesLayerByLayer) {
  class ToOne : public RoutingHook {
    void OnRouting(int64_t, const ForwardBatch&, std::span<int32_t> experts,
                   std::span<float>) override {
      for (size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<int32_t>(i);
    }
  };
  options_.dense_on_device = true;
  const auto run = [&](bool steps, RoutingHook* hook) {
    options_.capture_steps = steps;
    UseDevices(1);
    ModelHarness model(SampleModel(), options_);
    auto sequence = model.NewSequence(16);
    model.Prefill(sequence, std::vector<int32_t>{3, 1, 4}, 3);
    const ModelHarness::Piece piece = {&sequence, {5}};
    const uint64_t hash = HashOf(model.Run({&piece, 1}, hook));
    EXPECT_EQ(model.model().dense().whole_steps(), steps && hook == nullptr ? 1 : 0);
    return hash;
  };
  ToOne hook;
  const uint64_t replaced = run(true, &hook);
  EXPECT_EQ(replaced, run(false, &hook));
  EXPECT_NE(replaced, run(true, nullptr));
}

// What the host computes of a whole step's misses is what it computes layer by layer. Who is on the
// devices does not change.
TEST_F(CudaModelTest, WholeStepsGiveMissesToTheHost) {
  options_.dense_on_device = true;
  options_.miss = MissMode::kHost;
  options_.preload = true;
  const auto run = [&](bool whole) {
    options_.capture_steps = whole;
    UseDevices(2, 20);
    ModelHarness model(SampleModel(), options_);
    const uint64_t hash = HashOf(Logits(model, kPromptTokens));
    EXPECT_EQ(model.model().dense().whole_steps(), whole ? kSteps : 0);
    EXPECT_GT(model.stats().experts.on_host, 0u);
    EXPECT_GT(model.stats().experts.hits, 0u);
    return hash;
  };
  EXPECT_EQ(run(true), run(false));
}

// Attention with biases and heads that rotate in part, routers of sigmoids with corrections, groups
// and scales, weights in fp8: the dense part is the device's, and the host's choice is replayed.
TEST_F(CudaModelTest, DenseOfOtherModelsIsCloseToTheHosts) {
  options_.dense_on_device = true;
  for (const auto& [name, type] : {std::pair("glm4_moe_bf16_air", WeightType::kBf16),
                                   std::pair("glm4_moe_fp32_groups", WeightType::kBf16),
                                   std::pair("qwen2_moe_bf16_sparse_step", WeightType::kBf16),
                                   std::pair("glm4_moe_fp8", WeightType::kFp8),
                                   std::pair("minimax_m2_bf16_rotary_dim", WeightType::kBf16),
                                   std::pair("minimax_m2_fp8", WeightType::kFp8)}) {
    const std::string directory = FixtureModel(name);
    if (!std::filesystem::exists(directory)) GTEST_SKIP() << "SKIPPED: there is no " << directory;
    SCOPED_TRACE(name);
    options_.weight_type = type;
    UseDevices(1);
    if (machine_ == nullptr) return;
    RoutingLog routing;
    const std::vector<float> expected = OnTheHost(directory, &routing);
    ModelHarness model(directory, options_);
    ReplayedRouting replayed(routing, model.config().top_k());
    const std::vector<float> actual = Logits(model, kPromptTokens, &replayed);
    EXPECT_LE(RelativeDistance(actual, expected), 1.5e-2);
    EXPECT_LE(replayed.largest_difference(), 5e-2);
    EXPECT_NE(HashOf(actual), HashOf(expected));
  }
}

// More rows than are sent to the host in advance come when it computes an expert. Who is on the
// device does not change.
TEST_F(CudaModelTest, RowsOfALongPromptComeWhenTheHostComputes) {
  options_.dense_on_device = true;
  options_.miss = MissMode::kHost;
  options_.preload = true;
  options_.max_batch_tokens = 66;
  options_.max_context_tokens = 66;
  const auto run = [&](int64_t chunk) {
    UseDevices(1, 40);
    ModelHarness model(SampleModel(), options_);
    auto sequence = model.NewSequence(options_.max_context_tokens);
    const std::vector<int32_t> tokens =
        PromptOf(5, 66, static_cast<int>(model.config().vocab_size));
    const uint64_t hash = HashOf(model.Prefill(sequence, tokens, chunk));
    EXPECT_GT(model.stats().experts.on_host, 0u);
    EXPECT_GT(model.stats().experts.hits, 0u);
    return hash;
  };
  EXPECT_EQ(run(66), run(33));
}

// Of the same logits, whoever looks for the largest.
TEST_F(CudaModelTest, GreedyTokensAreTheHostsChoice) {
  options_.dense_on_device = true;
  ModelHarness model(SampleModel(), options_);
  EXPECT_TRUE(model.model().has_greedy_tokens());
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  auto sequence = model.NewSequence(options_.max_context_tokens);
  const std::vector<int32_t> tokens = PromptOf(7, 20, static_cast<int>(vocab));
  const std::vector<float> logits = model.Prefill(sequence, tokens, 20);
  const std::vector<int32_t> rows = {19, 0, 7};
  std::vector<int32_t> greedy(rows.size());
  model.model().GreedyTokens(rows, greedy.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = std::span(logits).subspan(static_cast<size_t>(rows[i]) * vocab, vocab);
    EXPECT_EQ(greedy[i], ArgMax(row)) << rows[i];
  }
}

// What the host computes of the misses makes it another mixture of classes: close, not the same.
TEST_F(CudaModelTest, MissesComputedOnTheHostStayClose) {
  const std::vector<float> expected = OnTheHost();
  for (const MissMode miss : {MissMode::kHost, MissMode::kAuto}) {
    UseDevices(2, 20);
    options_.miss = miss;
    ModelHarness model(SampleModel(), options_);
    EXPECT_LE(RelativeDistance(Logits(model, kPromptTokens), expected), 1.5e-2);
    EXPECT_GT(model.stats().experts.on_host, 0u);
  }
}

}  // namespace
}  // namespace moesaic
