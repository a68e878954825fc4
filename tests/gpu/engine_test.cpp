// The engine on a device that computes, from its memory to its answers, with the dense part there
// and on the host. Linked twice, as model_test.cpp is.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/metrics.h"
#include "core/base/units.h"
#include "kernels/cuda/gemm.h"
#include "serving/online/create_engine.h"
#include "serving/online/engine_devices.h"
#include "serving/online/part_options.h"
#include "tests/gpu/engine_machine.h"
#include "tests/gpu/sample_model.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

class CudaEngineTest : public testing::TestWithParam<DenseMode> {
 protected:
  void SetUp() override {
    std::string why_not;
    options_.devices.dense = GetParam();
    options_.model_dir = SampleModel();
    options_.kv_memory = "4MiB";
    options_.max_model_len = 256;
    options_.threads = 2;
    options_.max_num_batched_tokens = 32;
    options_.max_num_seqs = 4;
    options_.devices.count = 1;
    options_.devices.memory = "100%";
    if (!UseComputingDevices(options_.devices, why_not)) GTEST_SKIP() << "SKIPPED: " << why_not;
  }

  // Two greedy requests at the same time.
  std::vector<std::vector<int32_t>> Answers(const EngineOptions& options) {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    std::vector<std::shared_ptr<Collector>> sinks;
    for (int r = 0; r < 2; ++r) {
      EngineRequest request;
      for (int i = 0; i < 3 + 4 * r; ++i) request.prompt.push_back((r * 131 + i * 37) % 1000 + 5);
      request.sampling.temperature = 0;
      request.max_tokens = 3 + r;
      request.ignore_eos = true;
      sinks.push_back(SubmitOne(*engine, std::move(request)));
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& sink : sinks) {
      sink->Wait();
      EXPECT_EQ(sink->error, "");
      tokens.push_back(sink->Ids());
    }
    on_host_ = engine->Stats().experts.on_host;
    return tokens;
  }

  std::string Refusal(const EngineOptions& options, ErrorKind kind) {
    try {
      PlanEngine(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    return "accepted";
  }

  // What the first device holds besides experts.
  uint64_t Fixed() {
    uint64_t bytes = 0;
    const DevicePlan device = PlanEngine(options_).devices.at(0);
    for (const MemoryItem& entry : device.ledger.items) {
      if (entry.name != "expert slots") bytes += entry.bytes;
    }
    EXPECT_GT(bytes, 0u);
    return bytes;
  }

  EngineOptions options_;
  uint64_t on_host_ = 0;
};

// Up to the first near-tie, which another rounding may decide otherwise.
TEST_P(CudaEngineTest, GreedyTokensAreThoseOfTheReference) {
  constexpr float kNearTie = 0.3f;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options_, metrics);
  const ReferencePrompt reference = ReferencePrompts(SampleModel()).at(0);
  constexpr int32_t kTokens = 6;
  const auto sink = SubmitOne(*engine, Greedy(reference.prompt, kTokens));
  sink->Wait();
  EXPECT_EQ(sink->error, "");
  const std::vector<int32_t> ids = sink->Ids();
  size_t compared = 0;
  while (compared < ids.size() && compared < reference.greedy.size() &&
         reference.margins[compared] >= kNearTie) {
    EXPECT_EQ(ids[compared], reference.greedy[compared]) << compared;
    ++compared;
  }
  EXPECT_GT(compared, 0u);
}

TEST_P(CudaEngineTest, GpuMemoryDoesNotChangeAnswers) {
  const auto expected = Answers(options_);
  const uint64_t slot_bytes = PlanEngine(options_).slot_bytes;
  const uint64_t fixed = Fixed();
  options_.devices.memory = "auto";
  for (const uint64_t experts : {64, 6}) {
    options_.devices.gpu_memory = std::to_string(fixed + experts * slot_bytes);
    const EnginePlan plan = PlanEngine(options_);
    EXPECT_EQ(plan.devices.at(0).slots, static_cast<int64_t>(experts));
    EXPECT_EQ(plan.dense_devices > 0, GetParam() != DenseMode::kOff);
    EXPECT_EQ(Answers(options_), expected) << experts;
    EXPECT_EQ(on_host_, 0u);
  }
}

// Experts go to both, the dense part to the first.
TEST_P(CudaEngineTest, ASecondDeviceDoesNotChangeAnswers) {
  const auto expected = Answers(options_);
  options_.devices.count = 2;
  options_.devices.memory = "30%";
  std::string why_not;
  if (!UseComputingDevices(options_.devices, why_not)) GTEST_SKIP() << "SKIPPED: " << why_not;
  const EnginePlan plan = PlanEngine(options_);
  EXPECT_EQ(plan.devices.at(0).slots, plan.devices.at(1).slots);
  EXPECT_EQ(plan.devices.at(0).ledger.total_bytes() > plan.devices.at(1).ledger.total_bytes(),
            GetParam() == DenseMode::kOn);
  EXPECT_EQ(Answers(options_), expected);
}

TEST_P(CudaEngineTest, FastNumericsShareTheMisses) {
  options_.exact_numerics = false;
  options_.devices.miss = MissMode::kHost;
  options_.devices.memory = "25%";
  Answers(options_);
  EXPECT_GT(on_host_, 0u);
}

TEST_P(CudaEngineTest, TheLedgerAddsUp) {
  for (const char* memory : {"100%", "10%", "500KiB"}) {
    options_.devices.memory = memory;
    const DevicePlan device = PlanEngine(options_).devices.at(0);
    uint64_t sum = 0;
    for (const MemoryItem& entry : device.ledger.items) sum += entry.bytes;
    EXPECT_EQ(sum, device.ledger.total_bytes());
    EXPECT_LE(sum, device.ledger.limit_bytes);
  }
  options_.devices.memory = "auto";
  options_.devices.gpu_memory = "1GiB";  // more than all experts take
  const DevicePlan device = PlanEngine(options_).devices.at(0);
  EXPECT_EQ(device.slots, device.experts);
  EXPECT_LT(device.ledger.total_bytes(), device.ledger.limit_bytes);
}

TEST_P(CudaEngineTest, WhatCannotBeServedIsRefused) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? std::string() : text;
  };
  EngineOptions options = options_;
  options.devices.memory = "auto";
  options.devices.gpu_memory = "64KiB";
  const std::string too_little = Refusal(options, ErrorKind::kResourceExhausted);
  EXPECT_EQ(has(too_little, "--gpu-memory"), "");
  EXPECT_EQ(has(too_little, "at least " + FormatBytes(Fixed() + PlanEngine(options_).slot_bytes)),
            "");
  options = options_;
  options.devices.gpu_memory = std::to_string(Fixed() + (uint64_t{1} << 20));
  EXPECT_EQ(has(Refusal(options, ErrorKind::kResourceExhausted), "--device-memory"), "");
  options = options_;
  options.devices.miss = MissMode::kHost;
  EXPECT_EQ(has(Refusal(options, ErrorKind::kInvalidArgument), "--numerics fast"), "");
  options = options_;
  options.dtype = WeightType::kF32;
  EXPECT_EQ(has(Refusal(options, ErrorKind::kUnsupported), "--dtype bfloat16"), "");
  options = options_;
  options.max_num_batched_tokens = 20'000;
  EXPECT_EQ(has(Refusal(options, ErrorKind::kInvalidArgument), "--max-num-batched-tokens"), "");
}

INSTANTIATE_TEST_SUITE_P(Dense, CudaEngineTest, testing::Values(DenseMode::kOff, DenseMode::kOn),
                         [](const auto& param) {
                           return param.param == DenseMode::kOn ? "OnTheDevice" : "OnTheHost";
                         });

// Where the dense part goes, and what of it is told.
class CudaDenseTest : public CudaEngineTest {
 protected:
  static uint64_t Entry(const MemoryLedger& ledger, const std::string& name) {
    for (const MemoryItem& entry : ledger.items) {
      if (entry.name == name) return entry.bytes;
    }
    return 0;
  }
};
INSTANTIATE_TEST_SUITE_P(Dense, CudaDenseTest, testing::Values(DenseMode::kOn));

TEST_P(CudaDenseTest, KeysAndValuesMoveToTheDevice) {
  const EnginePlan on_device = PlanEngine(options_);
  options_.devices.dense = DenseMode::kOff;
  const EnginePlan on_host = PlanEngine(options_);
  const MemoryLedger& ledger = on_device.devices.at(0).ledger;
  EXPECT_EQ(Entry(ledger, "KV cache"), Entry(on_host.ledger, "KV cache"));
  EXPECT_EQ(Entry(on_device.ledger, "KV cache"), 0u);
  EXPECT_GT(Entry(ledger, "KV cache"), 0u);
  EXPECT_GE(Entry(ledger, "dense weights"), Entry(on_host.ledger, "dense weights"));
  EXPECT_GT(Entry(on_host.ledger, "dense weights"), 0u);
  EXPECT_EQ(on_device.num_kv_blocks, on_host.num_kv_blocks);
  EXPECT_EQ(on_device.max_context_tokens, on_host.max_context_tokens);
  EXPECT_EQ(Entry(on_host.devices.at(0).ledger, "KV cache"), 0u);
}

TEST_P(CudaDenseTest, WhatIsPinnedBesideTheExpertsIsInTheLedger) {
  const EnginePlan plan = PlanEngine(options_);
  const ModelConfig config = LoadModelConfig(options_.model_dir);
  const ExpertGrid grid(static_cast<int>(config.num_layers()),
                        static_cast<int>(config.num_experts()));
  EXPECT_GE(DeviceExperts::TableBytes(grid), SlotTable::Bytes(grid));
  EXPECT_EQ(Entry(plan.ledger, "emulated devices") + Entry(plan.ledger, "staging of devices"),
            DevicesHostBytes(options_, config, plan.devices) +
                DenseHostBytes(config, LimitsOf(options_, plan), 1) +
                DeviceExperts::TableBytes(grid));
}

TEST_P(CudaDenseTest, KvMemoryIsAShareOfTheDevice) {
  options_.devices.memory = "auto";
  options_.devices.gpu_memory = "16MiB";
  options_.max_model_len = 0;
  options_.kv_memory = "auto";
  const DevicePlan automatic = PlanEngine(options_).devices.at(0);
  EXPECT_GT(Entry(automatic.ledger, "KV cache"), 0u);
  EXPECT_LE(Entry(automatic.ledger, "KV cache"), automatic.ledger.limit_bytes / 4);
  options_.kv_memory = "12%";
  const DevicePlan share = PlanEngine(options_).devices.at(0);
  EXPECT_LE(Entry(share.ledger, "KV cache"), share.ledger.limit_bytes * 12 / 100);
  EXPECT_GE(Entry(share.ledger, "KV cache"), share.ledger.limit_bytes * 11 / 100);
}

// Two of the sample model's KV heads over three devices: one has no keys and values.
TEST_P(CudaDenseTest, ShardsHaveTheAnswersOfOneDevice) {
  const auto expected = Answers(options_);
  const DevicePlan one = PlanEngine(options_).devices.at(0);
  options_.devices.dense = DenseMode::kSharded;
  options_.devices.memory = "40%";
  for (const int devices : {2, 3}) {
    options_.devices.count = devices;
    std::string why_not;
    if (!UseComputingDevices(options_.devices, why_not)) GTEST_SKIP() << "SKIPPED: " << why_not;
    const EnginePlan plan = PlanEngine(options_);
    EXPECT_EQ(plan.dense_devices, devices);
    uint64_t kv_bytes = 0;
    for (const DevicePlan& device : plan.devices) {
      kv_bytes += Entry(device.ledger, "KV cache");
      EXPECT_GT(Entry(device.ledger, "dense workspace"), 0u);
      EXPECT_LT(Entry(device.ledger, "dense weights"), Entry(one.ledger, "dense weights"));
      uint64_t sum = 0;
      for (const MemoryItem& entry : device.ledger.items) sum += entry.bytes;
      EXPECT_EQ(sum, device.ledger.total_bytes());
    }
    EXPECT_EQ(kv_bytes, Entry(one.ledger, "KV cache"));
    EXPECT_EQ(Answers(options_), expected) << devices;
    EXPECT_EQ(on_host_, 0u);
  }
}

// --kv-memory is of all of them together; the one with most of the heads must have room.
TEST_P(CudaDenseTest, KvMemoryOfShards) {
  options_.devices.count = 3;
  options_.devices.dense = DenseMode::kSharded;
  std::string why_not;
  if (!UseComputingDevices(options_.devices, why_not)) GTEST_SKIP() << "SKIPPED: " << why_not;
  options_.devices.memory = "auto";
  options_.devices.gpu_memory = "16MiB";
  options_.max_model_len = 0;
  options_.kv_memory = "auto";
  const EnginePlan automatic = PlanEngine(options_);
  const uint64_t limit = automatic.devices.at(0).ledger.limit_bytes;
  EXPECT_EQ(Entry(automatic.devices.at(0).ledger, "KV cache"), 0u);
  for (const size_t d : {size_t{1}, size_t{2}}) {
    EXPECT_GT(Entry(automatic.devices.at(d).ledger, "KV cache"), 0u);
    EXPECT_LE(Entry(automatic.devices.at(d).ledger, "KV cache"), limit / 4);
  }
  options_.kv_memory = "5%";
  const EnginePlan share = PlanEngine(options_);
  uint64_t kv_bytes = 0;
  for (const DevicePlan& device : share.devices) kv_bytes += Entry(device.ledger, "KV cache");
  EXPECT_LE(kv_bytes, 3 * limit * 5 / 100);
  EXPECT_GE(kv_bytes, 3 * limit * 4 / 100);
  // Two thirds of all: more than two devices have beside the rest.
  options_.kv_memory = "66%";
  const std::string too_much = Refusal(options_, ErrorKind::kResourceExhausted);
  EXPECT_NE(too_much.find("on device 1"), std::string::npos) << too_much;
  EXPECT_NE(too_much.find("--kv-memory"), std::string::npos) << too_much;
}

// The host reads the dense weights, gives them back, and computes nothing but experts.
TEST_P(CudaDenseTest, TheHostKeepsNothingOfTheDensePart) {
  const EnginePlan on_device = PlanEngine(options_);
  options_.devices.dense = DenseMode::kOff;
  const EnginePlan on_host = PlanEngine(options_);
  EXPECT_EQ(Entry(on_device.ledger, "dense weights"), 0u);
  EXPECT_GT(Entry(on_host.ledger, "dense weights"), 0u);
  EXPECT_LT(Entry(on_device.ledger, "workspace"), Entry(on_host.ledger, "workspace"));
  uint64_t sum = 0;
  for (const MemoryItem& entry : on_device.ledger.items) sum += entry.bytes;
  EXPECT_EQ(sum, on_device.ledger.total_bytes());
}

// As the flag does; what would mix the host's rounding into a layer is refused.
TEST_P(CudaDenseTest, RulesPlaceIt) {
  const std::vector<std::vector<int32_t>> expected = Answers(options_);
  options_.devices.dense = DenseMode::kAuto;
  options_.place = {"attention=device:0", "layers.0.experts=pin"};
  const EnginePlan plan = PlanEngine(options_);
  EXPECT_EQ(plan.dense_devices, 1);
  EXPECT_EQ(plan.devices.at(0).kept, 32);
  EXPECT_EQ(Answers(options_), expected);
  options_.place = {"dense=host"};
  EXPECT_EQ(PlanEngine(options_).dense_devices, 0);
  options_.place = {"experts=host"};
  try {
    PlanEngine(options_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("'experts=host': host and GPU round"),
              std::string::npos)
        << error.what();
  }
  // Asked for, it is done: with no expert on the device.
  options_.exact_numerics = false;
  options_.devices.dense = DenseMode::kOn;
  EXPECT_EQ(PlanEngine(options_).devices.at(0).slots, 0);
  EXPECT_EQ(Answers(options_).size(), expected.size());
  EXPECT_GT(on_host_, 0u);
}

TEST_P(CudaDenseTest, ByDefaultItIsThereWhenItFits) {
  options_.devices.dense = DenseMode::kAuto;
  EnginePlan plan = PlanEngine(options_);
  EXPECT_EQ(plan.dense_devices, 1);
  EXPECT_EQ(plan.why_dense_on_host, "");
  // One expert less than a token needs of a layer.
  const int64_t top_k = LoadModelConfig(options_.model_dir).top_k();
  const uint64_t fixed = Fixed();
  options_.devices.memory = "auto";
  const auto memory = [&](int64_t experts) {
    return std::to_string(fixed + static_cast<uint64_t>(experts) * plan.slot_bytes);
  };
  options_.devices.gpu_memory = memory(top_k);
  EXPECT_EQ(PlanEngine(options_).dense_devices, 1);
  options_.devices.gpu_memory = memory(top_k - 1);
  const EnginePlan on_host = PlanEngine(options_);
  EXPECT_EQ(on_host.dense_devices, 0);
  EXPECT_NE(on_host.why_dense_on_host.find("--gpu-memory"), std::string::npos);
  EXPECT_GT(on_host.devices.at(0).slots, top_k);
  // For the asking one expert is enough.
  options_.devices.dense = DenseMode::kOn;
  EXPECT_EQ(PlanEngine(options_).devices.at(0).slots, top_k - 1);
  // What no kernel does.
  options_.devices.dense = DenseMode::kAuto;
  options_.devices.gpu_memory = "auto";
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8}) {
    options_.kv_cache_dtype = type;
    plan = PlanEngine(options_);
    EXPECT_EQ(plan.dense_devices, 0);
    EXPECT_NE(plan.why_dense_on_host.find(NameOf(kKvDtypes, type)), std::string::npos)
        << plan.why_dense_on_host;
  }
}

// Chosen on the device or, where the logits are wanted, on the host.
TEST_P(CudaDenseTest, GreedyTokensAreTheSameWithAndWithoutLogits) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options_, metrics);
  const auto ask = [&](const std::function<void(EngineRequest&)>& change) {
    EngineRequest request = Greedy({5, 42, 79, 116}, 6);
    request.ignore_eos = true;
    change(request);
    auto sink = SubmitOne(*engine, std::move(request));
    sink->Wait();
    EXPECT_EQ(sink->error, "");
    EXPECT_EQ(sink->tokens.size(), 6u);
    return sink;
  };
  const auto plain = ask([](EngineRequest&) {});
  const auto with_logprobs = ask([](EngineRequest& request) { request.logprobs = 1; });
  EXPECT_EQ(with_logprobs->Ids(), plain->Ids());
  for (const GeneratedToken& token : with_logprobs->tokens) {
    ASSERT_EQ(token.top.size(), 1u);
    EXPECT_EQ(token.top[0].token, token.token);
  }
  // A bias is followed.
  const auto biased = ask([](EngineRequest& request) {
    request.sampling.logit_bias = {{7, 1000.0f}};
  });
  EXPECT_EQ(biased->Ids(), std::vector<int32_t>(6, 7));
  EXPECT_NE(plain->Ids(), biased->Ids());
}

// A prompt of 64 rows or more by a library: the workspace is in the ledger, and what is generated
// is as probable as by our own kernels.
TEST_P(CudaDenseTest, CublasMultipliesAPrompt) {
  const std::string why = options_.devices.kind == DeviceKind::kCuda
                              ? cuda::WhyNoCublas()
                              : "--gpu-gemm cublas: only CUDA devices have it";
  options_.exact_numerics = false;
  options_.max_num_batched_tokens = 96;
  if (!why.empty()) {
    options_.devices.cublas = true;
    EXPECT_NE(Refusal(options_, ErrorKind::kUnsupported).find(why), std::string::npos);
    GTEST_SKIP() << "SKIPPED: " << why;
  }
  const uint64_t without = Fixed();
  const auto ask = [&] {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options_, metrics);
    std::vector<int32_t> prompt(70);
    for (size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = static_cast<int32_t>((i * 37) % 1000 + 5);
    }
    EngineRequest request = Greedy(std::move(prompt), 1);
    request.ignore_eos = true;
    request.logprobs = 1;
    auto sink = SubmitOne(*engine, std::move(request));
    sink->Wait();
    EXPECT_EQ(sink->error, "");
    return sink->tokens.at(0).top.at(0).logprob;
  };
  const float ours = ask();
  options_.devices.cublas = true;
  EXPECT_GE(Fixed(), without + (uint64_t{32} << 20));
  EXPECT_NEAR(ask(), ours, 0.05);
  options_.exact_numerics = true;
  EXPECT_NE(Refusal(options_, ErrorKind::kInvalidArgument).find("--numerics fast"),
            std::string::npos);
  options_.exact_numerics = false;
  options_.devices.dense = DenseMode::kOff;
  EXPECT_NE(Refusal(options_, ErrorKind::kInvalidArgument).find("--gpu-dense off"),
            std::string::npos);
}

TEST_P(CudaDenseTest, WhatItCannotDoIsRefused) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? std::string() : text;
  };
  EngineOptions options = options_;
  options.devices.memory = "auto";
  options.devices.gpu_memory = std::to_string(Fixed());
  const std::string too_little = Refusal(options, ErrorKind::kResourceExhausted);
  EXPECT_EQ(has(too_little, "--gpu-dense off"), "");
  EXPECT_EQ(has(too_little, "--kv-memory"), "");
  options = options_;
  options.kv_cache_dtype = WeightType::kF32;
  EXPECT_EQ(has(Refusal(options, ErrorKind::kUnsupported), "--kv-cache-dtype bfloat16"), "");
  for (const DenseMode mode : {DenseMode::kOn, DenseMode::kSharded}) {
    options = options_;
    options.devices.count = 0;
    options.devices.dense = mode;
    EXPECT_EQ(has(Refusal(options, ErrorKind::kInvalidArgument), "--device-kind cuda"), "");
  }
}

}  // namespace
}  // namespace moesaic
