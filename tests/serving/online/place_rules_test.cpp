// Rules of --place in latency mode: what they say is done, what cannot be done is refused by the
// rule's name, and logits have the recorded hashes whatever the rules are.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "serving/model/experts_of_model.h"
#include "serving/online/latency_step.h"
#include "tests/core/base/caught.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// The sample model: 8 layers of 32 experts, 4 for a token.
EngineOptions Options(int devices, std::vector<std::string> place) {
  EngineOptions options = SmallOptions();
  options.devices.count = devices;
  options.devices.emulated_link = {4e9, 5};
  if (devices > 0) options.expert_memory = MemorySize();
  options.place = std::move(place);
  return options;
}

// A step with its parts in hand.
class Rig {
 public:
  explicit Rig(const EngineOptions& options, bool fill = true)
      : setup_(SetUpEngine(options)),
        kernels_(*setup_.files.kernels),
        pool_(2),
        grid_(GridOf(setup_.files.config)),
        vocab_(static_cast<int>(setup_.files.config.vocab_size)),
        step_(setup_.options, setup_.plan, std::move(setup_.files), kernels_, pool_, {}) {
    step_.Preload({}, fill);
  }

  const EnginePlan& plan() const { return setup_.plan; }
  const ExpertStats& stats() const { return stats_; }
  std::span<const DeviceStatus> devices() { return step_.provider().devices(); }
  // Of layers, in order.
  std::vector<int64_t> ResidentsByLayer() {
    std::vector<int64_t> layers(static_cast<size_t>(grid_.num_layers()));
    for (const ResidentExpert& resident : step_.provider().Residents()) ++layers[resident.id.layer];
    return layers;
  }
  std::string numerics() const { return NumericsClassName(kernels_.numerics); }

  // The logits that golden_hashes_test.cpp hashes.
  std::string LogitHash() {
    std::vector<float> all;
    int32_t block = 0;
    const auto run = [&](const std::vector<int32_t>& tokens, const std::vector<int32_t>& blocks,
                         int64_t& position, int64_t chunk) {
      for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(chunk)) {
        const auto count = std::min(static_cast<size_t>(chunk), tokens.size() - first);
        SequenceSlice slice;
        slice.num_tokens = static_cast<int64_t>(count);
        slice.start_position = position;
        slice.blocks = blocks;
        position += slice.num_tokens;
        step_.provider().StepBegan();
        const ForwardBatch batch = {std::span(tokens).subspan(first, count), {&slice, 1}};
        stats_ += step_.Run(batch, nullptr).experts;
        for (size_t row = 0; row < count; ++row) {
          const auto number = static_cast<int32_t>(row);
          const size_t end = all.size();
          all.resize(end + static_cast<size_t>(vocab_));
          step_.model().Logits({&number, 1}, all.data() + end);
        }
      }
    };
    const auto blocks_of = [&](int64_t tokens) {
      std::vector<int32_t> blocks;
      for (int64_t covered = 0; covered < tokens; covered += kKvBlockTokens) {
        blocks.push_back(block++);
      }
      return blocks;
    };
    const std::vector<int32_t> blocks = blocks_of(80);
    int64_t position = 0;
    run(PromptOf(11, 70, vocab_), blocks, position, 32);
    run(PromptOf(12, 6, vocab_), blocks, position, 1);
    int64_t of_long = 0;
    run(PromptOf(13, 590, vocab_), blocks_of(600), of_long, 128);
    return fmt::format("{:016x}", Hash64(std::as_bytes(std::span(all))));
  }

 private:
  EngineSetup setup_;
  CpuKernels kernels_;
  ThreadPool pool_;
  ExpertGrid grid_;
  int vocab_;
  LatencyStep step_;
  ExpertStats stats_;
};

// Empty where there is none of the class.
std::string GoldenHash(const std::string& numerics) {
  const std::string key = numerics + " sample bf16 weights, bf16 kv: ";
  std::ifstream file(MOESAIC_TEST_DATA_DIR "/logit_hashes.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return line.substr(key.size());
  }
  return "";
}

TEST(PlaceRulesTest, LogitsHaveTheRecordedHashesUnderAnyRules) {
  struct Case {
    int devices;
    std::vector<std::string> place;
  };
  const Case cases[] = {
      {0, {}},
      {0, {"layers.0.experts=pin"}},
      {0, {"experts.0-3|31=pin", "layers.7.experts=cache", "dense=host"}},
      {0, {"experts=host"}},
      {2, {"layers.0-3.experts=host"}},
      {2, {"experts=host"}},
      {2, {"experts=host", "layers.2-.experts.5-20=pin@device:1"}},
      {2, {"experts.0-7=pin", "layers.5.experts=emulated:0@numa:0", "layers.6-.experts.8-15=cpu"}},
      {3, {"experts=device:2", "layers.1.experts=pin"}},
  };
  for (const Case& c : cases) {
    Rig rig(Options(c.devices, c.place));
    const std::string golden = GoldenHash(rig.numerics());
    if (golden.empty()) GTEST_SKIP() << "SKIPPED: no hashes of class " << rig.numerics();
    EXPECT_EQ(rig.LogitHash(), golden)
        << c.devices << " devices, " << (c.place.empty() ? "no rules" : c.place.front());
  }
}

TEST(PlaceRulesTest, PinnedExpertsAreThereFromTheStartAndNeverLeave) {
  constexpr int64_t kAll = 32;
  {
    Rig without(Options(0, {}));
    without.LogitHash();
    EXPECT_LT(without.ResidentsByLayer()[3], kAll);  // 64 slots for 256 experts
  }
  Rig rig(Options(0, {"layers.3.experts=pin"}));
  EXPECT_EQ(rig.plan().ledger.bytes("pinned experts"), kAll * rig.plan().slot_bytes);
  EXPECT_EQ(rig.plan().ledger.bytes("expert cache"), kAll * rig.plan().slot_bytes);
  EXPECT_EQ(rig.ResidentsByLayer()[3], kAll);
  rig.LogitHash();
  EXPECT_EQ(rig.ResidentsByLayer()[3], kAll);
  EXPECT_GT(rig.stats().evictions, 0u);

  // Also where nothing else is read ahead of its use.
  Rig cold(Options(0, {"layers.3.experts=pin"}), false);
  EXPECT_EQ(cold.ResidentsByLayer(), (std::vector<int64_t>{0, 0, 0, kAll, 0, 0, 0, 0}));

  // One slot is enough for all others.
  EngineOptions options = Options(0, {"layers.3.experts=pin"});
  options.expert_memory = std::to_string(33 * rig.plan().slot_bytes) + "B";
  Rig tight(options);
  const std::string hash = tight.LogitHash();
  EXPECT_EQ(tight.ResidentsByLayer()[3], kAll);
  const std::string golden = GoldenHash(tight.numerics());
  if (!golden.empty()) {
    EXPECT_EQ(hash, golden);
  }
}

TEST(PlaceRulesTest, DevicesHaveWhatTheRulesGiveThem) {
  EngineOptions options = Options(2, {"layers.0-1.experts=host", "layers.2.experts=pin@device:1",
                                      "layers.3-.experts=device:0"});
  options.devices.memory = "5760KiB";  // 80 experts
  Rig rig(options);
  const EnginePlan& plan = rig.plan();
  ASSERT_EQ(plan.devices.size(), 2u);
  EXPECT_EQ(plan.devices[0].experts, 5 * 32);
  EXPECT_EQ(plan.devices[0].slots, 5 * 16);
  EXPECT_EQ(plan.devices[0].kept, 0);
  EXPECT_EQ(plan.devices[1].experts, 32);
  EXPECT_EQ(plan.devices[1].kept, 32);
  rig.LogitHash();
  const std::vector<int64_t> residents = rig.ResidentsByLayer();
  EXPECT_EQ(residents[0] + residents[1], 0);
  EXPECT_EQ(residents[2], 32);
  // Of its 80 slots some may just be filled.
  EXPECT_GT(rig.devices()[0].resident, 0);
  EXPECT_LE(rig.devices()[0].resident, 80);
  EXPECT_EQ(rig.devices()[1].misses, 0u);
  // Those of the host are no device's.
  EXPECT_GT(rig.stats().on_host, rig.devices()[0].on_host + rig.devices()[1].on_host);
}

TEST(PlaceRulesTest, ADeviceMayHaveNoExperts) {
  Rig rig(Options(2, {"experts=device:1", "layers.4-.experts=host"}));
  EXPECT_EQ(rig.plan().devices[0].slots, 0);
  rig.LogitHash();
  EXPECT_EQ(rig.devices()[0].resident, 0);
  EXPECT_GT(rig.devices()[1].resident, 0);
  EXPECT_FALSE(rig.devices()[0].lost);
}

TEST(PlaceRulesTest, WhatCannotBeFollowedIsRefusedByName) {
  const auto expect = [](const EngineOptions& options, ErrorKind kind,
                         std::initializer_list<const char*> words) {
    const Error error = Caught([&] { PlanEngine(options); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const char* word : words) EXPECT_TRUE(Contains(error, word)) << error.what();
    EXPECT_TRUE(Contains(error, "--place")) << error.what();
  };
  const auto refuse = [&](int devices, std::vector<std::string> place, ErrorKind kind,
                          std::initializer_list<const char*> words) {
    expect(Options(devices, std::move(place)), kind, words);
  };
  refuse(0, {"layers.8.experts=pin"}, ErrorKind::kInvalidArgument, {"matches nothing"});
  refuse(0, {"experts=device:0"}, ErrorKind::kInvalidArgument,
         {"there are 0 devices", "--devices"});
  refuse(2, {"experts=device:2"}, ErrorKind::kInvalidArgument, {"there are 2 devices"});
  refuse(2, {"experts=cuda:0"}, ErrorKind::kInvalidArgument, {"devices are emulated here"});
  refuse(0, {"experts=cache@numa:0"}, ErrorKind::kUnsupported, {"without --devices"});
  refuse(2, {"attention=numa:0"}, ErrorKind::kUnsupported, {"only experts have a NUMA node"});
  refuse(2, {"router=cache"}, ErrorKind::kUnsupported, {"only experts are cached"});
  refuse(2, {"attention=device:1"}, ErrorKind::kUnsupported, {"device 0, on all together"});
  refuse(2, {"dense=device:0"}, ErrorKind::kInvalidArgument, {"no device that computes"});
  refuse(2, {"dense=host", "layers.3.attention=device:0"}, ErrorKind::kUnsupported,
         {"'layers.3.attention=device:0' puts attention elsewhere", "'dense=host'"});

  // Too much is pinned: with the ledger.
  refuse(0, {"layers.0-1.experts=pin"}, ErrorKind::kResourceExhausted,
         {"--expert-memory", "64 pinned experts", "a slot for the others", "dense weights"});
  EngineOptions options = Options(0, {"layers.0-1.experts=pin"});
  options.expert_memory = MemorySize();
  options.machine_memory_bytes = PlanEngine(options).ledger.total_bytes();
  const uint64_t slot_bytes = PlanEngine(options).slot_bytes;
  options.machine_memory_bytes -= (256 - 65) * slot_bytes;  // all but what is needed
  EXPECT_EQ(PlanEngine(options).expert_slots, 65);
  options.machine_memory_bytes -= 1;
  expect(options, ErrorKind::kResourceExhausted, {"pinned experts", "KV cache", "--memory"});
  options = Options(2, {"layers.0-1.experts=pin"});
  EXPECT_EQ(PlanEngine(options).devices[0].slots, 33);  // more than a quarter
  options.devices.memory = "25%";
  expect(options, ErrorKind::kResourceExhausted,
         {"--device-memory", "32 pinned experts", "and one expert", "expert slots"});
}

TEST(PlaceRulesTest, FlagsAreShortForRules) {
  EngineOptions options = Options(2, {"experts.0=pin"});
  options.devices.dense = DenseMode::kOff;
  const std::vector<PlacementRule> rules = PlacementRulesOf(options);
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[0].Name(), "experts=cache@devices (--devices)");
  EXPECT_EQ(rules[1].Name(), "dense=host (--gpu-dense off)");
  EXPECT_EQ(rules[2].Name(), "experts.0=pin (--place)");
  const ModelConfig config = LoadModelConfig(options.model_dir);
  const auto mode_of = [&](DenseMode flag, std::vector<std::string> place) {
    options.devices.dense = flag;
    options.place = std::move(place);
    return WithDenseByRules(options, config).devices.dense;
  };
  EXPECT_EQ(mode_of(DenseMode::kAuto, {}), DenseMode::kAuto);
  EXPECT_EQ(mode_of(DenseMode::kAuto, {"experts=pin"}), DenseMode::kAuto);
  EXPECT_EQ(mode_of(DenseMode::kAuto, {"attention=device:0"}), DenseMode::kOn);
  EXPECT_EQ(mode_of(DenseMode::kAuto, {"dense=emulated:0@pin"}), DenseMode::kOn);
  EXPECT_EQ(mode_of(DenseMode::kAuto, {"dense=devices"}), DenseMode::kSharded);
  EXPECT_EQ(mode_of(DenseMode::kOn, {"dense=host"}), DenseMode::kOff);
  EXPECT_EQ(mode_of(DenseMode::kSharded, {"experts=pin"}), DenseMode::kSharded);
  EXPECT_EQ(mode_of(DenseMode::kOn, {"*=pin"}), DenseMode::kAuto);  // which leaves it open
  // What is resolved stays as it is.
  EXPECT_EQ(mode_of(DenseMode::kOff, {"attention=host"}), DenseMode::kOff);
}

}  // namespace
}  // namespace moesaic
