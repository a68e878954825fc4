// The engine on a device that computes, from its memory to its answers. Linked twice, as
// model_test.cpp is.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/metrics.h"
#include "core/base/units.h"
#include "serving/online/create_engine.h"
#include "tests/gpu/engine_machine.h"
#include "tests/gpu/sample_model.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

class CudaEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
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
      GenerationRequest request;
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

  uint64_t Workspace() {
    const EnginePlan plan = PlanEngine(options_);
    for (const LedgerEntry& entry : plan.devices.at(0).ledger) {
      if (entry.name == "workspace") return entry.bytes;
    }
    ADD_FAILURE() << "no workspace in the ledger";
    return 0;
  }

  EngineOptions options_;
  uint64_t on_host_ = 0;
};

// Up to the first near-tie, which another rounding may decide otherwise.
TEST_F(CudaEngineTest, GreedyTokensAreThoseOfTheReference) {
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

TEST_F(CudaEngineTest, GpuMemoryDoesNotChangeAnswers) {
  const auto expected = Answers(options_);
  const uint64_t slot_bytes = PlanEngine(options_).slot_bytes;
  const uint64_t workspace = Workspace();
  options_.devices.memory = "auto";
  for (const uint64_t experts : {64, 6}) {
    options_.devices.gpu_memory = std::to_string(workspace + experts * slot_bytes);
    const EnginePlan plan = PlanEngine(options_);
    EXPECT_EQ(plan.devices.at(0).slots, static_cast<int64_t>(experts));
    EXPECT_EQ(Answers(options_), expected) << experts;
    EXPECT_EQ(on_host_, 0u);
  }
}

TEST_F(CudaEngineTest, FastNumericsShareTheMisses) {
  options_.exact_numerics = false;
  options_.devices.miss = MissMode::kHost;
  options_.devices.memory = "25%";
  Answers(options_);
  EXPECT_GT(on_host_, 0u);
}

TEST_F(CudaEngineTest, TheLedgerAddsUp) {
  for (const char* memory : {"100%", "10%", "500KiB"}) {
    options_.devices.memory = memory;
    const DevicePlan device = PlanEngine(options_).devices.at(0);
    uint64_t sum = 0;
    for (const LedgerEntry& entry : device.ledger) sum += entry.bytes;
    EXPECT_EQ(sum, device.memory_bytes);
    EXPECT_LE(sum, device.limit_bytes);
  }
  options_.devices.memory = "auto";
  options_.devices.gpu_memory = "1GiB";  // more than all experts take
  const DevicePlan device = PlanEngine(options_).devices.at(0);
  EXPECT_EQ(device.slots, device.experts);
  EXPECT_LT(device.memory_bytes, device.limit_bytes);
}

TEST_F(CudaEngineTest, WhatCannotBeServedIsRefused) {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? std::string() : text;
  };
  EngineOptions options = options_;
  options.devices.memory = "auto";
  options.devices.gpu_memory = "64KiB";
  const std::string too_little = Refusal(options, ErrorKind::kResourceExhausted);
  EXPECT_EQ(has(too_little, "--gpu-memory"), "");
  EXPECT_EQ(
      has(too_little, "at least " + FormatBytes(Workspace() + PlanEngine(options_).slot_bytes)),
      "");
  options = options_;
  options.devices.gpu_memory = std::to_string(Workspace() + (uint64_t{1} << 20));
  EXPECT_EQ(has(Refusal(options, ErrorKind::kResourceExhausted), "--device-memory"), "");
  options = options_;
  options.devices.miss = MissMode::kHost;
  EXPECT_EQ(has(Refusal(options, ErrorKind::kInvalidArgument), "--numerics fast"), "");
  options = options_;
  options.dtype = "float32";
  EXPECT_EQ(has(Refusal(options, ErrorKind::kUnsupported), "--dtype bfloat16"), "");
  options = options_;
  options.max_num_batched_tokens = 20'000;
  EXPECT_EQ(has(Refusal(options, ErrorKind::kInvalidArgument), "--max-num-batched-tokens"), "");
}

}  // namespace
}  // namespace moesaic
