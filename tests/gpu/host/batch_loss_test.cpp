// Throughput mode with devices that compute, against latency mode, and with devices that fail. On
// emulated devices, which fail when they are told to.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "serving/batch/batch_engine.h"
#include "tests/gpu/host/host_kernels.h"
#include "tests/serving/batch/pass_rig.h"
#include "tests/serving/model/relative_distance.h"
#include "tests/serving/model/replayed_routing.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// With the dense part on the host the class is that of latency mode, and so is every bit.
TEST(CudaBatchBitsTest, AreThoseOfLatencyMode) {
  constexpr int kSteps = 2;
  HarnessOptions harness;
  harness.isa = SelectKernels().isa;
  harness.devices = 1;
  harness.device_slots = 256;
  harness.kernels = &HostKernels();
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, harness);
  const auto vocab = static_cast<int>(model.config().vocab_size);
  PassLogits expected;
  for (int s = 0; s < kPassSequences; ++s) {
    ModelHarness::Sequence sequence = model.NewSequence(kPassBlocks * kKvBlockTokens);
    std::vector<float>& all = expected.emplace_back();
    for (int step = 0; step < kSteps; ++step) {
      const ModelHarness::Piece piece = {&sequence, PassTokens(s, step, vocab)};
      const std::vector<float> logits = model.Run({&piece, 1});
      all.insert(all.end(), logits.begin(), logits.end());
    }
  }
  PassSetting setting = {ScheduleKind::kOverlapped, 2, 20, 2};
  setting.steps = kSteps;
  setting.adjust = [](EngineOptions& options) {
    options.devices.dense = DenseMode::kOff;
    options.devices.emulated_kernels = &HostKernels();
  };
  PassRig rig(setting);
  EXPECT_EQ(HashesOf(rig.RunAll()), HashesOf(expected));
}

// Of what a router of bf16 products' hidden states gives an expert, against one of f32 products'.
constexpr float kRouterWeightBound = 2.5e-2f;

// Windows, norms of whole projections, sizes that fill no tile, dense layers: each group of rows
// gets its own part of all. Against the host with its routing in place: these routers are random,
// and a near tie that the host's class breaks otherwise is no error.
TEST(CudaBatchBitsTest, OtherModels) {
  // Without biases, which no kernel adds.
  const std::filesystem::path dense_layers =
      std::filesystem::path(testing::TempDir()) / "batch_dense_layers";
  std::filesystem::remove_all(dense_layers);
  std::filesystem::copy(FixtureModel("qwen3_moe_fp16_dense_layers"), dense_layers);
  auto config = nlohmann::json::parse(std::ifstream(dense_layers / "config.json"));
  config["attention_bias"] = false;
  std::ofstream(dense_layers / "config.json") << config;
  for (const std::string& name :
       {FixtureModel("mixtral_bf16_window"), FixtureModel("mixtral_fp16_llama3"),
        FixtureModel("olmoe_fp32_rope_parameters"), FixtureModel("qwen3_moe_fp32_odd"),
        dense_layers.string()}) {
    const auto rig = [&](int64_t groups, int devices) {
      PassSetting setting = {ScheduleKind::kPagedWeights, groups, 8, devices};
      setting.steps = 2;
      setting.adjust = [&](EngineOptions& options) {
        options.model_dir = name;
        if (devices == 0) return;
        options.devices.dense = DenseMode::kOn;
        options.devices.emulated_kernels = &HostKernels();
      };
      return PassRig(setting);
    };
    SCOPED_TRACE(name);
    EXPECT_EQ(HashesOf(rig(3, 1).RunAll()), HashesOf(rig(1, 1).RunAll()));
    PassRig host = rig(1, 0);
    RoutingLog recorded;
    const PassLogits expected = host.RunAll(&recorded);
    ReplayedRouting replayed(recorded, host.files.config.top_k());
    const PassLogits actual = rig(1, 1).RunAll(&replayed);
    EXPECT_TRUE(replayed.used_all());
    EXPECT_LE(replayed.largest_difference(), kRouterWeightBound);
    for (size_t s = 0; s < expected.size(); ++s) {
      EXPECT_LE(RelativeDistance(actual[s], expected[s]), 1.5e-2) << "sequence " << s;
    }
  }
}

EngineOptions LossOptions(DenseMode dense, int devices) {
  EngineOptions options;
  options.model_dir = MOESAIC_SAMPLE_MODEL_DIR;
  options.threads = 2;
  options.max_model_len = 64;
  options.max_num_seqs = 3;
  options.max_num_batched_tokens = 16;
  options.devices.count = devices;
  options.devices.memory = "20%";
  options.devices.dense = dense;
  options.devices.emulated_kernels = &HostKernels();
  return options;
}

struct Outcome {
  int answered = 0;
  std::vector<std::string> errors;
  bool lost = false;
};

// Every request ends, with as many tokens as it asked for or with an error.
Outcome RunJob(const EngineOptions& options) {
  BatchEngine engine(SetUpBatch(options, {3, 3, 2}));
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int r = 0; r < 3; ++r) {
    EngineRequest request = Greedy({5 + r, 42, 79}, 2);
    request.ignore_eos = true;
    sinks.push_back(SubmitOne(engine, std::move(request)));
  }
  Outcome outcome;
  for (const auto& sink : sinks) {
    sink->Wait();
    if (sink->error.empty()) {
      EXPECT_EQ(sink->Ids().size(), 2u);
      ++outcome.answered;
    } else {
      outcome.errors.push_back(sink->error);
    }
  }
  EngineStatus status = engine.Status();
  while (status.running > 0) status = engine.Status();
  for (const DeviceStatus& device : status.devices) outcome.lost = outcome.lost || device.lost;
  return outcome;
}

class CudaBatchLossTest : public testing::TestWithParam<DenseMode> {};

// Whatever is copied: experts, rows and tables, hidden states, logits. The pass is run again.
TEST_P(CudaBatchLossTest, NoRequestSeesALostDevice) {
  int lost = 0;
  for (const uint64_t copy : {5, 40, 100, 160, 210, 300, 370, 460, 520}) {
    EngineOptions options = LossOptions(GetParam(), 1);
    options.devices.emulated_faults = {{.lost_at_copy = copy}};
    const Outcome outcome = RunJob(options);
    EXPECT_EQ(outcome.answered, 3) << copy << ": " << outcome.errors.front();
    lost += outcome.lost ? 1 : 0;
  }
  EXPECT_GE(lost, 4);
}

// With the first one the dense part goes, with the second one its experts only.
TEST_P(CudaBatchLossTest, OneOfTwoIsLost) {
  for (const int device : {0, 1}) {
    EngineOptions options = LossOptions(GetParam(), 2);
    options.devices.emulated_faults.resize(2);
    options.devices.emulated_faults[static_cast<size_t>(device)].lost_at_copy = 90;
    const Outcome outcome = RunJob(options);
    EXPECT_EQ(outcome.answered, 3) << device;
    EXPECT_TRUE(outcome.lost) << device;
  }
}

// One copy at any place costs time only.
TEST_P(CudaBatchLossTest, NoRequestSeesACopyThatFails) {
  for (uint64_t copy = 4; copy < 400; copy += 99) {
    EngineOptions options = LossOptions(GetParam(), 1);
    options.devices.emulated_faults = {{.failing_copies = {copy}}};
    const Outcome outcome = RunJob(options);
    EXPECT_EQ(outcome.answered, 3) << copy << ": " << outcome.errors.front();
    EXPECT_FALSE(outcome.lost);
  }
}

// Many: requests end with the error, and nothing hangs.
TEST_P(CudaBatchLossTest, RequestsEndWhateverFails) {
  EngineOptions options = LossOptions(GetParam(), 2);
  options.devices.emulated_faults = {{.copy_failure_probability = 0.2, .seed = 1},
                                     {.copy_failure_probability = 0.2, .seed = 2}};
  const Outcome outcome = RunJob(options);
  for (const std::string& error : outcome.errors) {
    EXPECT_TRUE(error.find("failed by an injected fault") != std::string::npos ||
                error.find("Input/output error") != std::string::npos ||  // of an expert
                error.find("could not be") != std::string::npos)
        << error;
  }
  EXPECT_EQ(outcome.answered + static_cast<int>(outcome.errors.size()), 3);
}

// A launch that is refused is a bug of this program: where the host can do it instead, it does.
TEST(CudaBatchBitsTest, ExpertsThatAKernelRefuses) {
  cuda::Kernels kernels = HostKernels();
  kernels.swiglu = [](const cuda::SwiGluArgs&, cuda::StreamHandle) -> LaunchResult {
    return {.code = 1, .kernel = "swiglu", .message = "refused on purpose"};
  };
  EngineOptions options = LossOptions(DenseMode::kOff, 1);
  options.devices.emulated_kernels = &kernels;
  EXPECT_EQ(RunJob(options).answered, 3);
}

INSTANTIATE_TEST_SUITE_P(Dense, CudaBatchLossTest, testing::Values(DenseMode::kOff, DenseMode::kOn),
                         [](const auto& mode) {
                           return mode.param == DenseMode::kOn ? "OnDevice" : "OnHost";
                         });

}  // namespace
}  // namespace moesaic
