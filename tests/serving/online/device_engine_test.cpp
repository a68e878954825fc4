// The engine with devices: several requests at once, with faults that none of them may see.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/metrics.h"
#include "core/device/cuda_device.h"
#include "serving/online/create_engine.h"
#include "serving/online/engine_devices.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

EngineOptions DeviceOptionsFor(int devices) {
  EngineOptions options;
  options.model_dir = MOESAIC_SAMPLE_MODEL_DIR;
  options.kv_memory = "8MiB";
  options.max_model_len = 512;
  options.threads = 2;
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 8;
  options.devices.count = devices;
  options.devices.emulated_link = {2e9, 5};
  return options;
}

// Six greedy requests of different lengths at the same time; their tokens.
std::vector<std::vector<int32_t>> Answers(Engine& engine) {
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int r = 0; r < 6; ++r) {
    EngineRequest request;
    for (int i = 0; i < 5 + 9 * r; ++i) request.prompt.push_back((r * 131 + i * 37) % 1000 + 5);
    request.sampling.temperature = 0;
    request.max_tokens = 12 + r;
    request.ignore_eos = true;
    sinks.push_back(SubmitOne(engine, std::move(request)));
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const auto& sink : sinks) {
    sink->Wait();
    EXPECT_EQ(sink->error, "");
    tokens.push_back(sink->Ids());
  }
  return tokens;
}

// The last answer comes before its step is counted.
EngineStatus StatusWhenIdle(const Engine& engine) {
  for (;;) {
    EngineStatus status = engine.Status();
    if (status.running == 0) return status;
    std::this_thread::yield();
  }
}

std::vector<std::vector<int32_t>> AnswersWithoutDevices() {
  MetricsRegistry metrics;
  return Answers(*CreateEngine(DeviceOptionsFor(0), metrics));
}

TEST(DeviceEngineTest, AnswersAreThoseWithoutDevices) {
  const auto expected = AnswersWithoutDevices();
  for (const MissMode miss : {MissMode::kFetch, MissMode::kHost, MissMode::kAuto}) {
    for (const char* predictor : {"blend", "none"}) {
      EngineOptions options = DeviceOptionsFor(2);
      options.devices.miss = miss;
      options.predictor = predictor;
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      EXPECT_EQ(Answers(*engine), expected) << static_cast<int>(miss) << " " << predictor;
      const EngineStatus status = StatusWhenIdle(*engine);
      ASSERT_EQ(status.devices.size(), 2u);
      EXPECT_EQ(status.expert_slots, 64);
      EXPECT_EQ(status.devices[1].slots, 32);
      EXPECT_GT(status.devices[1].hits, 0u);
      const StepStats stats = engine->Stats();
      EXPECT_EQ(stats.experts.on_host, status.devices[0].on_host + status.devices[1].on_host);
      EXPECT_EQ(stats.experts.hits, status.devices[0].hits + status.devices[1].hits);
      EXPECT_EQ(stats.experts.bytes_read,
                status.devices[0].bytes_copied + status.devices[1].bytes_copied);
      EXPECT_EQ(stats.experts.on_host == 0, miss == MissMode::kFetch);
    }
  }
}

TEST(DeviceEngineTest, RequestsDoNotSeeFaults) {
  const auto expected = AnswersWithoutDevices();
  EngineOptions options = DeviceOptionsFor(3);
  options.devices.miss = MissMode::kFetch;
  options.devices.emulated_faults = {
      {.copy_failure_probability = 0.4, .seed = 3},
      {.stalls = {{.copy = 60, .stall_us = 30'000}}, .lost_at_copy = 150},
      {}};
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  EXPECT_EQ(Answers(*engine), expected);
  EXPECT_EQ(Answers(*engine), expected);
  const EngineStatus status = StatusWhenIdle(*engine);
  EXPECT_FALSE(status.devices[0].lost);
  EXPECT_TRUE(status.devices[1].lost);
  EXPECT_EQ(status.devices[1].resident, 0);
  EXPECT_GT(status.devices[1].on_host, 0u);
  const std::string text = metrics.Serialize();
  for (const char* line :
       {"moe_device_lost{device=\"emulated:1\"} 1", "moe_device_lost{device=\"emulated:2\"} 0"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  const StepStats stats = engine->Stats();
  EXPECT_GT(stats.experts.failed_reads, stats.experts.given_up);
  EXPECT_GT(stats.experts.given_up, 0u);
}

std::string Refusal(const EngineOptions& options, ErrorKind kind) {
  try {
    PlanEngine(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "accepted";
}

TEST(DevicePlanTest, LedgerAndSlots) {
  EngineOptions options = DeviceOptionsFor(3);
  const EnginePlan plan = PlanEngine(options);
  ASSERT_EQ(plan.devices.size(), 3u);
  EXPECT_EQ(plan.devices[0].experts + plan.devices[1].experts + plan.devices[2].experts, 256);
  for (const DevicePlan& device : plan.devices) EXPECT_EQ(device.slots, device.experts / 4);
  EXPECT_EQ(plan.ledger.bytes("experts in host memory"), plan.all_experts_bytes);
  EXPECT_EQ(plan.ledger.bytes("emulated devices"),
            static_cast<uint64_t>(plan.expert_slots) * plan.slot_bytes);
  // A size is that of each device.
  options.devices.memory = "720KiB";
  EXPECT_EQ(PlanEngine(options).expert_slots, 30);
  options.devices.memory = "1GiB";
  EXPECT_EQ(PlanEngine(options).expert_slots, 256);
}

TEST(DevicePlanTest, MissesArePlannedByTheProfileFirst) {
  EngineOptions options = DeviceOptionsFor(2);
  ExpertLayout layout;
  layout.blob_bytes = 3'000'000;
  const auto per_s = [](double value) {
    return Measured{value, value, value, "byte/s", "how", "when"};
  };
  DeviceProfile profile;
  profile.copies = {{kDefaultPacketBytes, per_s(9e9), per_s(3e9), per_s(9e9)}};
  profile.on_host = {{"bf16", 1, per_s(9e9), per_s(6e9)},
                     {"int4", 1, per_s(9e9), per_s(1e9)},
                     {"bf16", 16, per_s(9e9), per_s(2e9)},
                     {"bf16", 64, per_s(0), per_s(0)}};
  DeviceExpertsOptions experts;
  experts.slots = {4, 4};
  options.devices.emulated_link = {};  // as fast as memory
  StartFromProfiles(options, layout, experts);
  EXPECT_TRUE(experts.copy_ns.empty());
  EXPECT_TRUE(experts.host_ns.empty());
  options.devices.emulated_link = {.bytes_per_s = 6e9, .latency_us = 10};
  StartFromProfiles(options, layout, experts);
  EXPECT_EQ(experts.copy_ns, (std::vector<int64_t>{510'000, 510'000}));
  EXPECT_TRUE(experts.host_ns.empty());
  experts.copy_ns.clear();
  options.devices.profiles = {profile, profile};
  options.devices.profiles[1].copies[0].to_device_loaded = per_s(1e9);
  StartFromProfiles(options, layout, experts);
  EXPECT_EQ(experts.copy_ns, (std::vector<int64_t>{1'000'000, 3'000'000}));
  EXPECT_EQ(experts.host_ns,
            (std::vector<std::pair<int64_t, double>>{{1, 500'000}, {16, 1'500'000}}));
}

// Two experts on each device, of which a quarter would be none: by default one has a place.
TEST(DevicePlanTest, FewExpertsOnADeviceNeedNoSettings) {
  EngineOptions options = DeviceOptionsFor(8);
  options.model_dir = MOESAIC_TEST_DATA_DIR "/models/mixtral_fp32_defaults";
  options.max_model_len = 64;
  for (const DevicePlan& device : PlanEngine(options).devices) {
    EXPECT_EQ(device.experts, 2);
    EXPECT_EQ(device.slots, 1);
  }
  options.devices.memory = "25%";  // asked for, it is refused
  EXPECT_NE(Refusal(options, ErrorKind::kResourceExhausted).find("--device-memory"),
            std::string::npos);
}

TEST(DevicePlanTest, WhatCannotBeServedIsRefused) {
  EngineOptions options = DeviceOptionsFor(1);
  options.devices.memory = "1KiB";
  EXPECT_NE(Refusal(options, ErrorKind::kResourceExhausted).find("--device-memory"),
            std::string::npos);
  options = DeviceOptionsFor(1);
  options.machine_memory_bytes = PlanEngine(options).ledger.total_bytes() - 1;
  EXPECT_NE(Refusal(options, ErrorKind::kResourceExhausted).find("--devices"), std::string::npos);
  options = DeviceOptionsFor(1);
  options.expert_memory = "25%";
  EXPECT_NE(Refusal(options, ErrorKind::kInvalidArgument).find("--device-memory"),
            std::string::npos);
  options = DeviceOptionsFor(33);
  EXPECT_NE(Refusal(options, ErrorKind::kInvalidArgument).find("at most 32"), std::string::npos);
  options = DeviceOptionsFor(1);
  options.devices.kind = DeviceKind::kCuda;
  if (!FindCudaDevices().devices.empty()) return;
  const bool compiled = cuda::CompiledKernels() != nullptr;
  const std::string why =
      Refusal(options, compiled ? ErrorKind::kNotFound : ErrorKind::kUnsupported);
  EXPECT_NE(why.find(compiled ? "CUDA" : "built without CUDA"), std::string::npos) << why;
}

}  // namespace
}  // namespace moesaic
