// Throughput mode with devices that compute: the same bits whatever the schedule, the groups, the
// slots and the number of devices, with the dense modules there and on the host. Linked twice, as
// model_test.cpp is.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "serving/batch/batch_engine.h"
#include "tests/gpu/engine_machine.h"
#include "tests/gpu/sample_model.h"
#include "tests/serving/batch/pass_rig.h"
#include "tests/serving/batch/timeline_checks.h"
#include "tests/serving/model/relative_distance.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

constexpr auto kModule = ScheduleKind::kModuleBatching;
constexpr auto kOverlapped = ScheduleKind::kOverlapped;
constexpr auto kPaged = ScheduleKind::kPagedWeights;
constexpr int kSteps = 2;  // a prefill and a decode step

class CudaBatchTest : public testing::TestWithParam<DenseMode> {
 protected:
  void SetUp() override {
    std::string why_not;
    DeviceOptions options;
    options.count = 1;
    if (!UseComputingDevices(options, why_not)) GTEST_SKIP() << "SKIPPED: " << why_not;
  }

  static PassSetting On(PassSetting setting) {
    setting.steps = kSteps;
    setting.adjust = [](EngineOptions& options) {
      options.model_dir = SampleModel();
      if (options.devices.count == 0) return;
      options.devices.dense = GetParam();
      std::string why_not;
      UseComputingDevices(options.devices, why_not);
    };
    return setting;
  }
};

// Nearly all rows of `vocab` logits are: a router's near tie, which another class of numerics may
// break otherwise, changes a row and those that attend to it.
void ExpectClose(const PassLogits& actual, const PassLogits& expected, size_t vocab) {
  ASSERT_EQ(actual.size(), expected.size());
  size_t rows = 0;
  size_t close = 0;
  for (size_t s = 0; s < actual.size(); ++s) {
    ASSERT_EQ(actual[s].size(), expected[s].size());
    for (size_t begin = 0; begin < actual[s].size(); begin += vocab) {
      const double distance = RelativeDistance(std::span(actual[s]).subspan(begin, vocab),
                                               std::span(expected[s]).subspan(begin, vocab));
      ++rows;
      close += distance <= 1.5e-2 ? 1 : 0;
    }
  }
  EXPECT_GE(static_cast<double>(close), 0.75 * static_cast<double>(rows)) << rows << " rows";
}

TEST_P(CudaBatchTest, BitsDependOnNoPlacement) {
  PassRig host(On({kModule, 1, 40, 0}));
  PassRig first(On({kModule, 1, 256, 1}));
  EXPECT_EQ(first.plan.dense_on_device, GetParam() == DenseMode::kOn);
  const PassLogits expected = first.RunAll();
  ExpectClose(expected, host.RunAll(), static_cast<size_t>(host.files.config.vocab_size));
  const PassSetting settings[] = {
      {kModule, 3, 2, 1}, {kOverlapped, 2, 1, 1}, {kPaged, 4, 33, 1}, {kPaged, 2, 20, 2}};
  for (const PassSetting& setting : settings) {
    DeviceOptions devices;
    devices.count = setting.devices;
    std::string why_not;
    if (!UseComputingDevices(devices, why_not)) GTEST_SKIP() << "SKIPPED: " << why_not;
    PassRig rig(On(setting));
    EXPECT_EQ(HashesOf(rig.RunAll()), HashesOf(expected))
        << ScheduleKindName(setting.schedule) << ", " << setting.groups << " groups, "
        << setting.slots << " slots, " << setting.devices << " devices";
    const Timeline::Snapshot timeline = rig.timeline.Take();
    ExpectNoStallWhileIdle(timeline);
    ExpectComputeLaneInOrder(timeline);
    const int64_t copies =
        GetParam() == DenseMode::kOn ? timeline.sum(Activity::kAttention).count : 0;
    EXPECT_EQ(timeline.sum(Activity::kHiddenOut).count, copies);
    EXPECT_EQ(timeline.sum(Activity::kHiddenIn).count, copies);
  }
}

EngineOptions JobOptions() {
  EngineOptions options;
  options.model_dir = SampleModel();
  options.threads = 2;
  options.max_model_len = 64;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 16;
  options.devices.count = 1;
  return options;
}

std::vector<std::vector<int32_t>> Answers(const EngineOptions& options, const BatchPlan& plan) {
  BatchEngine engine({options, OpenModelFiles(options), plan});
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int r = 0; r < 6; ++r) {
    EngineRequest request = Greedy({5 + r, 42, 79}, 3);
    request.ignore_eos = true;
    if (r == 2) request.logprobs = 1;  // logits, not only tokens
    sinks.push_back(SubmitOne(engine, std::move(request)));
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const auto& sink : sinks) {
    sink->Wait();
    EXPECT_EQ(sink->error, "");
    tokens.push_back(sink->Ids());
    EXPECT_EQ(tokens.back().size(), 3u);
  }
  return tokens;
}

// A cap on the memory takes slots, and nothing else changes; the ledger adds up to what is taken.
TEST_P(CudaBatchTest, GpuMemoryIsACap) {
  EngineOptions options = JobOptions();
  std::string why_not;
  UseComputingDevices(options.devices, why_not);
  options.devices.dense = GetParam();
  options.devices.memory = "100%";
  const BatchPlan all = PlanBatch(options, {6, 3, 3});
  EXPECT_EQ(all.dense_on_device, GetParam() == DenseMode::kOn);
  uint64_t sum = 0;
  uint64_t fixed = 0;
  for (const MemoryItem& entry : all.devices.at(0).ledger.items) {
    sum += entry.bytes;
    if (entry.name != "expert slots") fixed += entry.bytes;
  }
  EXPECT_EQ(sum, all.devices.at(0).ledger.total_bytes());
  const auto expected = Answers(options, all);
  options.devices.memory = "auto";
  for (const uint64_t slots : {3, 40}) {
    options.devices.gpu_memory = std::to_string(fixed + slots * all.slot_bytes);
    const BatchPlan plan = PlanBatch(options, {6, 3, 3});
    EXPECT_EQ(plan.devices.at(0).slots, static_cast<int64_t>(slots));
    EXPECT_EQ(plan.dense_on_device, GetParam() == DenseMode::kOn);
    EXPECT_EQ(Answers(options, plan), expected) << slots;
  }
  options.devices.gpu_memory = std::to_string(fixed);
  try {
    PlanBatch(options, {6, 3, 3});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("--gpu-memory"), std::string::npos) << error.what();
  }
}

// By default the dense part goes where there is room for it.
TEST_P(CudaBatchTest, WithoutRoomTheDensePartStaysOnTheHost) {
  EngineOptions options = JobOptions();
  std::string why_not;
  UseComputingDevices(options.devices, why_not);
  options.devices.dense = DenseMode::kOff;
  options.devices.memory = "10%";
  const uint64_t bytes = PlanBatch(options, {6, 3, 3}).devices.at(0).ledger.total_bytes();
  options.devices.dense = DenseMode::kAuto;
  options.devices.memory = "auto";
  options.devices.gpu_memory = std::to_string(bytes);
  const BatchPlan plan = PlanBatch(options, {6, 3, 3});
  EXPECT_FALSE(plan.dense_on_device);
  EXPECT_NE(plan.why_dense_on_host.find("--gpu-memory"), std::string::npos);
  options.devices.gpu_memory = "1GiB";
  EXPECT_TRUE(PlanBatch(options, {6, 3, 3}).dense_on_device);
}

INSTANTIATE_TEST_SUITE_P(Dense, CudaBatchTest, testing::Values(DenseMode::kOff, DenseMode::kOn),
                         [](const auto& mode) {
                           return mode.param == DenseMode::kOn ? "OnDevice" : "OnHost";
                         });

}  // namespace
}  // namespace moesaic
