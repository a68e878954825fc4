// The engine with the dense part on a device that fails. On emulated devices, which fail when they
// are told to.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/metrics.h"
#include "core/config/model_config.h"
#include "serving/model/dense_slices.h"
#include "serving/online/create_engine.h"
#include "tests/gpu/engine_machine.h"
#include "tests/gpu/sample_model.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// Copies of the dense part before the first step: weights, and the two tables of positions.
constexpr uint64_t kCopiesToStart = 3;

EngineOptions Options() {
  EngineOptions options;
  options.model_dir = SampleModel();
  options.kv_memory = "2MiB";
  options.max_model_len = 64;
  options.max_num_batched_tokens = 16;
  options.max_num_seqs = 4;
  options.predictor = "none";
  options.preload = false;  // the first copies are those of the dense part
  options.devices.count = 1;
  options.devices.memory = "100%";
  options.devices.dense = DenseMode::kOn;
  std::string why_not;
  EXPECT_TRUE(UseComputingDevices(options.devices, why_not));
  return options;
}

std::shared_ptr<Collector> Ask(Engine& engine) {
  EngineRequest request = Greedy({5, 42, 79}, 3);
  request.ignore_eos = true;
  auto sink = SubmitOne(engine, std::move(request));
  sink->Wait();
  return sink;
}

TEST(DenseLossTest, RequestsOfALostDeviceEndWithItsError) {
  EngineOptions options = Options();
  options.devices.emulated_faults = {{.lost_at_copy = kCopiesToStart + 20}};
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  for (int i = 0; i < 3; ++i) {  // later ones too: their keys and values would be there
    const auto sink = Ask(*engine);
    EXPECT_NE(sink->error.find("emulated:0 is lost"), std::string::npos) << sink->error;
    EXPECT_NE(sink->error.find("start again"), std::string::npos) << sink->error;
  }
  EngineStatus status = engine->Status();
  EXPECT_NE(status.not_ready.find("emulated:0 is lost"), std::string::npos) << status.not_ready;
  while (status.running > 0 || !status.devices.at(0).lost) status = engine->Status();
  EXPECT_NE(metrics.Serialize().find("moe_device_lost{device=\"emulated:0\"} 1"),
            std::string::npos);
}

TEST(DenseLossTest, ACopyThatFailsEndsItsStepOnly) {
  std::vector<int32_t> expected;
  {
    MetricsRegistry metrics;
    expected = Ask(*CreateEngine(Options(), metrics))->Ids();
    ASSERT_EQ(expected.size(), 3u);
  }
  // The tables of the first step, or what comes behind them.
  for (const uint64_t copy : {1, 2, 3}) {
    EngineOptions options = Options();
    options.devices.emulated_faults = {{.failing_copies = {kCopiesToStart + copy}}};
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    EXPECT_NE(Ask(*engine)->error.find("failed by an injected fault"), std::string::npos) << copy;
    const auto next = Ask(*engine);
    EXPECT_EQ(next->error, "");
    EXPECT_EQ(next->Ids(), expected) << copy;
  }
}

// Whatever it was: of experts (which no request sees), or of the dense part at any place of a step.
TEST(DenseLossTest, AfterACopyThatFailsRequestsGoOn) {
  int failed = 0;
  for (uint64_t copy = 4; copy < 80; copy += 15) {
    EngineOptions options = Options();
    options.devices.emulated_faults = {{.failing_copies = {kCopiesToStart + copy}}};
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    const std::string error = Ask(*engine)->error;
    if (!error.empty()) {
      EXPECT_NE(error.find("failed by an injected fault"), std::string::npos) << error;
      ++failed;
    }
    const auto next = Ask(*engine);
    EXPECT_EQ(next->error, "") << copy;
    EXPECT_EQ(next->tokens.size(), 3u) << copy;
  }
  EXPECT_GT(failed, 0);
}

// Decode steps, which are graphs that ask the host: neither side is left waiting, wherever in them
// a copy fails, of the graph, of experts or of what the host sends.
TEST(DenseLossTest, NoDecodeStepHangs) {
  int failed = 0;
  // Those of the two steps that decode: what a layer tells the host is written there by a kernel.
  for (uint64_t copy = 113; copy < 137; copy += 3) {
    EngineOptions options = Options();
    options.devices.memory = "60%";  // of the experts some are always missing
    EmulatedFaults faults;
    const bool lost = copy % 2 == 1;
    if (lost) {
      faults.lost_at_copy = kCopiesToStart + copy;
    } else {
      faults.failing_copies = {kCopiesToStart + copy};
    }
    options.devices.emulated_faults = {faults};
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    failed += Ask(*engine)->error.empty() ? 0 : 1;
    Ask(*engine);
    const std::string later = Ask(*engine)->error;
    EXPECT_EQ(later.empty(), !lost) << copy << ": " << later;
  }
  EXPECT_GT(failed, 2);
}

// Over two devices, of which the second has no experts' sums and no logits: whichever is lost.
EngineOptions ShardedOptions() {
  EngineOptions options = Options();
  options.devices.count = 2;
  options.devices.dense = DenseMode::kSharded;
  return options;
}

// Copies of a device's part of the dense weights, and the two tables of positions.
uint64_t CopiesToStart(int device) {
  const ModelConfig config = LoadModelConfig(SampleModel());
  AlignedBuffer memory(ModelWeights::Bytes(config, WeightType::kBf16));
  std::byte* const base = memory.data();
  const DenseSlices slices(config, ModelWeights::At(config, WeightType::kBf16, base), 2, device,
                           base);
  return slices.pieces().size() + 2;
}

TEST(DenseLossTest, RequestsOfALostShardEndWithItsError) {
  for (const int lost : {0, 1}) {
    EngineOptions options = ShardedOptions();
    options.devices.emulated_faults.resize(2);
    options.devices.emulated_faults[static_cast<size_t>(lost)].lost_at_copy =
        CopiesToStart(lost) + 20;
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    EXPECT_EQ(engine->Status().not_ready, "");
    std::string name = "emulated:";
    name += std::to_string(lost);
    name += " is lost";
    for (int i = 0; i < 3; ++i) {
      const auto sink = Ask(*engine);
      EXPECT_NE(sink->error.find(name), std::string::npos) << sink->error;
    }
    EXPECT_NE(engine->Status().not_ready.find(name), std::string::npos);
  }
}

TEST(DenseLossTest, AfterACopyOfAShardThatFailsRequestsGoOn) {
  std::vector<int32_t> expected;
  {
    MetricsRegistry metrics;
    expected = Ask(*CreateEngine(ShardedOptions(), metrics))->Ids();
    ASSERT_EQ(expected.size(), 3u);
  }
  int failed = 0;
  for (uint64_t copy = 1; copy < 40; copy += 6) {
    for (const int device : {0, 1}) {
      EngineOptions options = ShardedOptions();
      options.devices.emulated_faults.resize(2);
      options.devices.emulated_faults[static_cast<size_t>(device)].failing_copies = {
          CopiesToStart(device) + copy};
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      const std::string error = Ask(*engine)->error;
      if (!error.empty()) {
        EXPECT_NE(error.find("failed by an injected fault"), std::string::npos) << error;
        ++failed;
      }
      const auto next = Ask(*engine);
      EXPECT_EQ(next->error, "") << device << ", " << copy;
      EXPECT_EQ(next->tokens.size(), 3u) << device << ", " << copy;
    }
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace moesaic
