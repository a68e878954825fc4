// Throughput mode end to end: the answers of latency mode in every bit that can be seen from
// outside, preemption, cancellation, sizes that fit, and the report.

#include "serving/batch/batch_engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/metrics.h"
#include "serving/batch/batch_report.h"
#include "tests/core/base/caught.h"
#include "tests/serving/batch/timeline_checks.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

EngineOptions BatchOptions() {
  EngineOptions options = SmallOptions();
  options.kv_memory = "auto";
  options.max_num_seqs = 0;
  options.max_num_batched_tokens = 0;
  return options;
}

std::unique_ptr<BatchEngine> MakeEngine(const EngineOptions& options,
                                        const BatchWorkload& workload = {64, 40, 12}) {
  return std::make_unique<BatchEngine>(SetUpBatch(options, workload));
}

// 16 requests: greedy and sampled, short and long, with log-probabilities.
std::vector<EngineRequest> Requests(int32_t more_tokens) {
  const std::vector<ReferencePrompt> prompts = ReferencePrompts();
  std::vector<EngineRequest> requests;
  for (size_t i = 0; i < 16; ++i) {
    EngineRequest request = Greedy(prompts[i % prompts.size()].prompt, 4 + i % 9);
    request.max_tokens += more_tokens;
    request.ignore_eos = true;
    request.logprobs = 2;
    if (i % 4 == 1) {
      request.sampling.temperature = 0.9;
      request.sampling.seed = i;
    }
    if (i % 7 == 2) request.prompt_logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Token ids and log-probabilities of all requests.
std::vector<std::vector<float>> RunAll(Engine& engine, int32_t more_tokens = 0) {
  std::vector<EngineRequest> requests = Requests(more_tokens);
  std::vector<std::shared_ptr<Collector>> collectors;
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    collectors.push_back(std::make_shared<Collector>());
    sinks.push_back(collectors.back());
  }
  engine.Submit(std::move(requests), std::move(sinks));
  std::vector<std::vector<float>> seen;
  for (const auto& collector : collectors) {
    collector->Wait();
    EXPECT_EQ(collector->error, "");
    std::vector<float>& values = seen.emplace_back();
    for (const auto* tokens : {&collector->prompt_tokens, &collector->tokens}) {
      for (const GeneratedToken& token : *tokens) {
        values.push_back(static_cast<float>(token.token));
        values.push_back(token.logprob);
      }
    }
  }
  return seen;
}

TEST(BatchEngineTest, AnswersOfLatencyMode) {
  for (const WeightType dtype : {WeightType::kBf16, WeightType::kInt4}) {
    std::vector<std::vector<float>> expected;
    {
      EngineOptions options = SmallOptions();
      options.dtype = dtype;
      MetricsRegistry metrics;
      expected = RunAll(*CreateEngine(options, metrics));
      if (dtype == WeightType::kBf16) {
        options.weight_coding = WeightCoding::kLossless;
        EXPECT_EQ(RunAll(*CreateEngine(options, metrics)), expected) << "coded";
      }
    }
    const std::pair<const char*, int64_t> settings[] = {
        {"80KiB", 0}, {"25%", 1}, {"25%", 7}, {"100%", 0}};
    for (const auto& [memory, sequences] : settings) {
      EngineOptions options = BatchOptions();
      options.dtype = dtype;
      options.expert_memory = memory;
      options.max_num_seqs = sequences;
      if (sequences == 1) options.weight_coding = WeightCoding::kLossless;
      if (sequences == 7) options.max_num_batched_tokens = 16;
      const auto engine = MakeEngine(options);
      EXPECT_EQ(RunAll(*engine), expected)
          << WeightTypeName(dtype) << ", " << memory << ", " << sequences << " sequences";
      const Timeline::Snapshot timeline = engine->TakeTimeline();
      ExpectComputeLaneInOrder(timeline);
      ExpectNoStallWhileIdle(timeline);
    }
  }
}

// However short the requests of the file are: one of --max-model-len may be among them.
TEST(BatchPlanTest, ARequestOfTheLongestContextFits) {
  EngineOptions options = BatchOptions();
  options.model_dir = MOESAIC_TEST_DATA_DIR "/models/mixtral_fp16_llama3";
  options.max_model_len = 8192;
  const BatchPlan plan = PlanBatch(options, BatchWorkload{2, 40, 12});
  EXPECT_EQ(plan.sizes.max_context_tokens, 8192);
  options.kv_memory = "64KiB";
  const Error refused = Caught([&] { PlanBatch(options, BatchWorkload{2, 40, 12}); });
  EXPECT_NE(std::string(refused.what()).find("--kv-memory"), std::string::npos) << refused.what();
}

// A schedule, in host memory or on so many devices.
EngineOptions WithSchedule(EngineOptions options, ScheduleKind schedule, int devices) {
  options.schedule = schedule;
  options.devices.count = devices;
  if (devices > 0) options.expert_memory = "auto";
  return options;
}

constexpr ScheduleKind kAllSchedules[] = {ScheduleKind::kModuleBatching, ScheduleKind::kOverlapped,
                                          ScheduleKind::kPagedWeights};

class BatchPreemptionTest : public ::testing::TestWithParam<int> {};

TEST_P(BatchPreemptionTest, ChangesNothing) {
  const int devices = GetParam();
  const ScheduleKind schedule = kAllSchedules[devices];
  const auto roomy = MakeEngine(BatchOptions());
  const auto expected = RunAll(*roomy, 40);
  EXPECT_EQ(roomy->preemptions(), 0);
  EngineOptions options = BatchOptions();
  options.kv_memory = "500KiB";
  options.max_model_len = 0;
  options.max_num_seqs = 32;
  const auto tight = MakeEngine(WithSchedule(options, schedule, devices));
  EXPECT_EQ(RunAll(*tight, 40), expected) << ScheduleKindName(schedule);
  EXPECT_GT(tight->preemptions(), 0);
  const Timeline::Snapshot timeline = tight->TakeTimeline();
  ExpectComputeLaneInOrder(timeline);
  ExpectNoStallWhileIdle(timeline);
}

INSTANTIATE_TEST_SUITE_P(Devices, BatchPreemptionTest, ::testing::Range(0, 3));

TEST(BatchEngineTest, SchedulesAndDevices) {
  std::vector<std::vector<float>> expected;
  {
    MetricsRegistry metrics;
    expected = RunAll(*CreateEngine(SmallOptions(), metrics));
  }
  for (const ScheduleKind schedule : kAllSchedules) {
    for (const int devices : {0, 2}) {
      const auto engine = MakeEngine(WithSchedule(BatchOptions(), schedule, devices));
      EXPECT_EQ(RunAll(*engine), expected)
          << ScheduleKindName(schedule) << ", " << devices << " devices";
      const EngineStatus status = engine->Status();
      ASSERT_EQ(std::ssize(status.devices), devices);
      int64_t slots = 0;
      for (const DeviceStatus& device : status.devices) {
        slots += device.slots;
        EXPECT_GT(device.bytes_copied, 0u);
        EXPECT_EQ(device.on_host, 0u);
      }
      if (devices > 0) {
        EXPECT_EQ(slots, engine->plan().sizes.expert_slots);
      }
    }
  }
}

TEST(BatchEngineTest, ALostDeviceReachesNoRequest) {
  const auto expected = RunAll(*MakeEngine(BatchOptions()));
  for (const uint64_t lost_at_copy : {uint64_t{1}, uint64_t{150}}) {
    for (const size_t lost : {0, 1}) {
      EngineOptions options = WithSchedule(BatchOptions(), ScheduleKind::kPagedWeights, 2);
      options.devices.emulated_faults.resize(lost + 1);
      options.devices.emulated_faults[lost].lost_at_copy = lost_at_copy;
      const auto engine = MakeEngine(options);
      EXPECT_EQ(RunAll(*engine), expected) << "device " << lost;
      const EngineStatus status = engine->Status();
      EXPECT_TRUE(status.devices[lost].lost);
      EXPECT_GT(status.devices[lost].on_host, 0u);
      EXPECT_FALSE(status.devices[1 - lost].lost);
    }
  }
}

TEST(BatchEngineTest, CancelAndEnd) {
  for (int devices = 0; devices < 3; ++devices) {
    const ScheduleKind schedule = kAllSchedules[devices];
    auto engine = MakeEngine(WithSchedule(BatchOptions(), schedule, devices));
    RequestId id = 0;
    EngineRequest request = Greedy({1, 2, 3}, 900);
    request.ignore_eos = true;
    const auto collector = SubmitOne(*engine, request, &id);
    collector->WaitForDeltas(2);
    engine->Cancel(id);
    EXPECT_EQ(collector->Wait().finish, FinishReason::kCancelled);
    const auto left = SubmitOne(*engine, request);
    left->WaitForDeltas(1);
    engine.reset();
    EXPECT_EQ(left->Wait().finish, FinishReason::kCancelled);
  }
}

TEST(BatchEngineTest, DeadlinesAndDrain) {
  const auto engine = MakeEngine(BatchOptions());
  EngineRequest late = Greedy({1, 2, 3}, 900);
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_EQ(SubmitOne(*engine, late)->Wait().error, "the request's time ran out");
  EngineRequest request = Greedy({1, 2, 3}, 5);
  request.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  request.ignore_eos = true;
  const auto in_time = SubmitOne(*engine, request);
  engine->BeginDrain();
  EXPECT_TRUE(engine->Status().draining);
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, request); }).kind(), ErrorKind::kUnavailable);
  EXPECT_EQ(in_time->Wait().usage.completion_tokens, 5);
}

TEST(BatchEngineTest, RefusesWhatCanNeverRun) {
  const auto engine = MakeEngine(BatchOptions());
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, Greedy({}, 1)); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, Greedy({-1}, 1)); }).kind(),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { SubmitOne(*engine, Greedy(std::vector<int32_t>(5000, 1), 1)); }).kind(),
            ErrorKind::kInvalidArgument);
}

TEST(BatchPlanTest, DeferralIsForLatencyMode) {
  EngineOptions options = BatchOptions();
  options.defer_experts = 1;
  const Error error = Caught([&] { MakeEngine(options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("throughput mode"), std::string::npos);
}

// Rules that leave every expert to the plan are followed, others are refused by name.
TEST(BatchPlanTest, RulesAboutExpertsAreForLatencyMode) {
  const auto plan = [](int devices, std::string rule) {
    EngineOptions options = BatchOptions();
    if (devices > 0) options.expert_memory = "auto";
    options.devices.count = devices;
    options.place = {std::move(rule)};
    return PlanBatch(options, {4, 40, 8});
  };
  for (const char* rule : {"layers.0.experts=pin", "experts=cache@numa:0", "experts.3=device:0"}) {
    const Error error = Caught([&] { plan(1, rule); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_TRUE(Contains(error, "--place: '" + std::string(rule) + "': in throughput mode"))
        << error.what();
  }
  EXPECT_EQ(Caught([&] { plan(1, "experts=host"); }).kind(), ErrorKind::kUnsupported);
  EXPECT_EQ(Caught([&] { plan(1, "dense=device:0"); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(Caught([&] { plan(0, "layers.9=host"); }).kind(), ErrorKind::kInvalidArgument);
  for (const char* rule : {"experts=cache", "experts=host", "dense=host"}) {
    EXPECT_EQ(plan(0, rule).ledger.total_bytes(), plan(0, "head=pin").ledger.total_bytes());
  }
  EXPECT_EQ(plan(2, "experts=cache@devices").devices.size(), 2u);
}

TEST(BatchPlanTest, SizesFitTheMemory) {
  EngineOptions options = BatchOptions();
  options.expert_memory = "auto";
  std::set<int64_t> residents;
  int refused = 0;
  for (uint64_t mib = 100; mib < 360; mib += 10) {
    options.machine_memory_bytes = mib << 20;
    try {
      const BatchPlan plan = PlanBatch(options, {500, 100, 50});
      EXPECT_LE(plan.ledger.total_bytes(), options.machine_memory_bytes);
      EXPECT_GE(plan.sizes.max_batch_tokens, plan.sizes.max_num_seqs);
      EXPECT_GE(plan.sizes.expert_slots, 1);
      residents.insert(plan.sizes.expert_slots - plan.sizes.buffers);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
      EXPECT_TRUE(Contains(error, "--memory"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(*residents.rbegin(), 256);  // all experts
  EXPECT_LT(*residents.begin(), 128);
  // With all the memory in the world, as many sequences as there are requests.
  options.machine_memory_bytes = uint64_t{1} << 34;
  EXPECT_EQ(PlanBatch(options, {500, 100, 50}).sizes.max_num_seqs, 500);
  EXPECT_EQ(PlanBatch(options, {500, 100, 50}).sizes.buffers, 0);
}

TEST(BatchPlanTest, DevicesAreInTheLedger) {
  EngineOptions options = WithSchedule(BatchOptions(), ScheduleKind::kPagedWeights, 2);
  options.devices.memory = "50%";
  const BatchPlan plan = PlanBatch(options, BatchWorkload{100, 40, 12});
  ASSERT_EQ(plan.devices.size(), 2u);
  EXPECT_EQ(plan.sizes.expert_slots, 128);
  EXPECT_EQ(plan.sizes.micro_batches, 4);
  uint64_t devices = 0;
  for (const DevicePlan& device : plan.devices) {
    devices += device.ledger.total_bytes();
  }
  EXPECT_EQ(devices, 128 * plan.slot_bytes + plan.devices.front().ledger.bytes("hidden states"));
  EXPECT_EQ(plan.ledger.bytes("emulated devices"), devices);
  EXPECT_EQ(plan.ledger.bytes("experts in host memory"), plan.all_experts_bytes);
  options.devices.memory = "1KiB";
  EXPECT_TRUE(Contains(Caught([&] {
                         PlanBatch(options, BatchWorkload{100, 40, 12});
                       }),
                       "--device-memory"));
  options.devices.memory = "100%";
  EXPECT_EQ(PlanBatch(options, BatchWorkload{100, 40, 12}).sizes.buffers, 0);
  options.expert_memory = "25%";
  EXPECT_TRUE(Contains(Caught([&] {
                         PlanBatch(options, BatchWorkload{100, 40, 12});
                       }),
                       "--expert-memory"));
}

TEST(BatchReportTest, SaysWhereTimeBytesAndMemoryWent) {
  EngineOptions options = BatchOptions();
  options.expert_memory = "25%";
  const auto engine = MakeEngine(options);
  RunAll(*engine);
  BatchReport report;
  report.model = "<model>";
  report.plan = engine->plan();
  report.stats = engine->Stats();
  report.timeline = engine->TakeTimeline();
  report.seconds = 2;
  report.output_tokens = 100;
  const Json json = BatchReportJson(report);
  EXPECT_EQ(json["tokens"]["output_per_s"], 50);
  EXPECT_EQ(json["passes"], report.stats.steps);
  EXPECT_GT(json["experts"]["bytes_read"], 0);
  EXPECT_GE(json["link"]["bytes"], json["experts"]["bytes_read"]);
  EXPECT_GT(json["busy_s"]["experts"], 0.0);
  EXPECT_EQ(json["memory"]["ledger_bytes"], report.plan.ledger.total_bytes());
  const std::string html = BatchReportHtml(report);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("&lt;model>"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);  // one file, without links
  EXPECT_NE(BatchReportHtml({}).find("Nothing was recorded"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
