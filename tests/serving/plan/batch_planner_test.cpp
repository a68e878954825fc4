// The plan of a batch job: sizes that the engine can run with, by its own ledger, and the module
// costs that they rest on, measured on the sample model.
#include "serving/plan/batch_planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/batch/batch_engine.h"
#include "serving/batch/batch_report.h"
#include "serving/plan/batch_prediction.h"
#include "serving/plan/module_profiler.h"
#include "tests/core/base/caught.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

EngineOptions JobOptions() {
  EngineOptions options = SmallOptions();
  options.kv_memory = "auto";
  options.expert_memory = "auto";
  options.max_num_seqs = 0;
  options.max_num_batched_tokens = 0;
  options.max_model_len = 0;
  options.machine_memory_bytes = uint64_t{160} << 20;
  return options;
}

ModuleCosts SomeCosts() {
  ModuleCosts costs;
  costs.key = "made up";
  for (ModuleCost& cost : costs.modules) cost = {1e-5, 1e-6, 0.01, 10, ""};
  costs[Module::kDecodeAttention] = costs[Module::kPrefillAttention] = {0, 1e-9, 0.01, 10, ""};
  costs.link = {5e8, 5e8, 5e8, "byte/s", "", ""};
  costs.contended_link_share = {1, 1, 1, "share", "", ""};
  costs.contended_compute_share = {0.9, 0.9, 0.9, "share", "", ""};
  costs.host_copy = {5e9, 5e9, 5e9, "byte/s", "", ""};
  costs.cores = 2;
  return costs;
}

TEST(BatchPlannerTest, PlansWhatFitsAndSaysWhatItExpects) {
  const ModuleCosts costs = SomeCosts();
  const Workload workload = UniformWorkload(60, 20, 300);
  double last_tokens_per_s = 0;
  int64_t last_slots = 0;
  for (const uint64_t mib : {120, 140, 160, 400}) {
    EngineOptions options = JobOptions();
    options.machine_memory_bytes = mib << 20;
    const ModelFiles files = OpenModelFiles(options);
    const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
    SCOPED_TRACE(mib);
    EXPECT_LE(plan.ledger.total_bytes(), options.machine_memory_bytes);
    EXPECT_EQ(LedgerOf(options, files, plan.sizes).ledger.total_bytes(), plan.ledger.total_bytes());
    ASSERT_TRUE(plan.execution);
    const ExecutionPlan& execution = *plan.execution;
    EXPECT_EQ(execution.ledgers.front().total_bytes(), plan.ledger.total_bytes());
    EXPECT_TRUE(execution.ledgers.front().fits());
    EXPECT_EQ(execution.batch_sequences, plan.sizes.max_num_seqs);
    EXPECT_EQ(execution.token_budget, plan.sizes.max_batch_tokens);
    EXPECT_EQ(execution.expert_buffers, plan.sizes.buffers);
    const PhasePrediction& decode = execution.prediction.decode;
    EXPECT_GE(decode.period_s, decode.roofline_s * 0.99);
    EXPECT_LE(decode.period_s, decode.serial_s * 1.01);
    // More memory never makes it slower.
    EXPECT_GE(execution.prediction.generated_tokens_per_s, last_tokens_per_s * 0.99);
    EXPECT_GE(plan.sizes.expert_slots, last_slots / 2);
    last_tokens_per_s = execution.prediction.generated_tokens_per_s;
    last_slots = plan.sizes.expert_slots;
  }
  EXPECT_EQ(last_slots, 256);  // all experts
}

TEST(BatchPlannerTest, KeepsWhatIsFixed) {
  EngineOptions options = JobOptions();
  options.max_num_seqs = 24;
  options.max_num_batched_tokens = 200;
  const ModelFiles files = OpenModelFiles(options);
  const ModuleCosts costs = SomeCosts();
  const BatchPlan plan = PlanBatchJob(options, files, UniformWorkload(60, 20, 300), &costs);
  EXPECT_EQ(plan.sizes.max_num_seqs, 24);
  EXPECT_EQ(plan.sizes.max_batch_tokens, 200);
}

TEST(BatchPlannerTest, NoSizesNearbyArePredictedToBeMuchFaster) {
  EngineOptions options = JobOptions();
  options.machine_memory_bytes = uint64_t{125} << 20;  // a sequence more is an expert less
  const ModelFiles files = OpenModelFiles(options);
  const Workload workload = UniformWorkload(300, 16, 512);
  ModuleCosts costs = SomeCosts();
  costs.link.value = 1e7;
  const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
  for (const double sequences : {0.85, 1.0, 1.15}) {
    for (const double tokens : {0.8, 0.9, 1.1, 1.25}) {
      EngineOptions fixed = options;
      const auto scaled = [](int64_t value, double by) {
        return std::llround(static_cast<double>(value) * by);
      };
      fixed.max_num_seqs = scaled(plan.sizes.max_num_seqs, sequences);
      fixed.max_num_batched_tokens =
          std::max<int64_t>(scaled(plan.sizes.max_batch_tokens, tokens), fixed.max_num_seqs);
      SCOPED_TRACE(fmt::format("{} {}", fixed.max_num_seqs, fixed.max_num_batched_tokens));
      // A size that does not fit is no better.
      std::optional<BatchPlan> other;
      try {
        other = PlanBatchJob(fixed, files, workload, &costs);
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::kResourceExhausted);
        continue;
      }
      EXPECT_GT(other->execution->prediction.wall_s, 0.98 * plan.execution->prediction.wall_s);
    }
  }
}

TEST(BatchPlannerTest, FallsBackToTheRule) {
  const EngineOptions options = JobOptions();
  const ModelFiles files = OpenModelFiles(options);
  const Workload workload = UniformWorkload(60, 20, 300);
  const BatchPlan plan = PlanBatchJob(options, files, workload, nullptr);
  EXPECT_FALSE(plan.execution);
  EXPECT_EQ(plan.sizes.max_num_seqs, PlanBatch(options, files, {300, 60, 20}).sizes.max_num_seqs);
  // What fits by neither is refused with what is missing.
  EngineOptions tight = options;
  tight.machine_memory_bytes = uint64_t{20} << 20;
  const ModuleCosts costs = SomeCosts();
  const Error error = Caught([&] { PlanBatchJob(tight, files, workload, &costs); });
  EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
  EXPECT_NE(std::string(error.what()).find("--memory"), std::string::npos);
}

TEST(BatchPlannerTest, ASlowLinkWantsALargeBatchAndResidents) {
  EngineOptions options = JobOptions();
  options.expert_memory = "25%";
  const ModelFiles files = OpenModelFiles(options);
  const Workload workload = UniformWorkload(30, 30, 300);
  ModuleCosts costs = SomeCosts();
  costs.link.value = 1e7;
  const BatchPlan slow = PlanBatchJob(options, files, workload, &costs);
  EXPECT_EQ(slow.execution->prediction.decode.bottleneck, Resource::kLinkIn);
  EXPECT_GT(slow.sizes.max_num_seqs, 64);
  costs.link.value = 1e12;
  const BatchPlan fast = PlanBatchJob(options, files, workload, &costs);
  EXPECT_EQ(fast.execution->prediction.decode.bottleneck, Resource::kDevice);
  EXPECT_GT(fast.execution->prediction.generated_tokens_per_s,
            2 * slow.execution->prediction.generated_tokens_per_s);
}

// MoE-Lens: n_real = (t_io - a) / b.
TEST(BatchPlannerTest, ThePassThatComputesAsLongAsItReads) {
  ModelConfig config;
  config.layers.push_back(SparseLayer(8, 2));
  ModuleCosts costs;
  costs[Module::kAttentionIn] = {1e-3, 1e-5, 0, 1, ""};
  costs[Module::kOutput] = {2e-3, 2e-5, 0, 1, ""};
  costs[Module::kRouter] = {3e-3, 3e-5, 0, 1, ""};
  costs[Module::kExpert] = {5e-4, 2e-5, 0, 1, ""};
  // a: 6 ms and 8 experts of 0.5 ms each; b: 60 us and 2 of 20 us each.
  EXPECT_NEAR(TokenBudget(config, costs, 0.110), 1000, 1e-9);
  EXPECT_EQ(TokenBudget(config, costs, 0.005), 0);
}

TEST(BatchPlannerTest, SaysWhatATenthMoreWouldGain) {
  EngineOptions options = JobOptions();
  options.expert_memory = "25%";
  const ModelFiles files = OpenModelFiles(options);
  const Workload workload = UniformWorkload(30, 30, 300);
  ModuleCosts costs = SomeCosts();
  costs.link.value = 1e7;
  const auto ask = [&] {
    const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
    const std::vector<WhatIf> answers = AskWhatIf(
        options, files, workload, costs, plan.execution->prediction.generated_tokens_per_s);
    std::map<std::string, double> gains;
    for (size_t i = 0; i < answers.size(); ++i) {
      gains[answers[i].change] = answers[i].gain;
      EXPECT_GE(answers[0].gain, answers[i].gain);
    }
    return gains;
  };
  // The disk is the limit: a tenth of it is nearly a tenth of all.
  std::map<std::string, double> gains = ask();
  EXPECT_EQ(gains.size(), 4u);
  EXPECT_NEAR(gains.at("disk rate +10%"), 0.1, 0.03);
  EXPECT_LT(gains.at("CPU rates +10%"), 0.03);
  EXPECT_GT(gains.at("host memory +10%"), 0.03);  // a larger batch reads as much
  costs.link.value = 1e12;
  gains = ask();
  EXPECT_NEAR(gains.at("CPU rates +10%"), 0.1, 0.03);
  EXPECT_LT(gains.at("disk rate +10%"), 0.03);
}

ModuleCosts MeasureSample(const EngineOptions& options, const ModelFiles& files) {
  const HostDescription host = DescribeHost(ReadTopology());
  ModuleProfilerInputs inputs{files.config, *files.tensors, *files.experts, SelectKernels()};
  inputs.threads = options.threads;
  inputs.memory_bytes = options.machine_memory_bytes;
  inputs.seconds = 0.2;
  return MeasureModules(inputs, host);
}

EngineOptions DeviceOptionsOfJob(double link_bytes_per_s) {
  EngineOptions options = JobOptions();
  options.devices.count = 1;
  options.devices.memory = "40%";
  options.devices.emulated_link = {link_bytes_per_s, 10};
  return options;
}

TEST(BatchPlannerTest, PlansForAnEmulatedDevice) {
  const ModuleCosts costs = SomeCosts();
  const Workload workload = UniformWorkload(30, 30, 200);
  EngineOptions options = DeviceOptionsOfJob(1e7);
  const ModelFiles files = OpenModelFiles(options);
  const BatchPlan slow = PlanBatchJob(options, files, workload, &costs);
  ASSERT_TRUE(slow.execution);
  EXPECT_EQ(LedgerOf(options, files, slow.sizes).ledger.total_bytes(), slow.ledger.total_bytes());
  EXPECT_LE(slow.ledger.total_bytes(), options.machine_memory_bytes);
  const PhasePrediction& decode = slow.execution->prediction.decode;
  EXPECT_EQ(decode.bottleneck, Resource::kLinkIn);
  EXPECT_GE(decode.period_s, decode.roofline_s * 0.99);
  EXPECT_LE(decode.period_s, decode.serial_s * 1.01);
  // All that is streamed crosses a link of 10 MB/s.
  const JobPrediction& job = *slow.execution->prediction.job;
  EXPECT_GE(slow.execution->prediction.wall_s, job.link_bytes / 1e7 * 0.99);
  EXPECT_GT(job.hidden_in_s, 0);
  EXPECT_GT(job.hidden_out_s, 0);

  options.devices.emulated_link.bytes_per_s = 1e11;
  const BatchPlan fast = PlanBatchJob(options, files, workload, &costs);
  EXPECT_EQ(fast.execution->prediction.decode.bottleneck, Resource::kDevice);
  EXPECT_GT(fast.execution->prediction.generated_tokens_per_s,
            2 * slow.execution->prediction.generated_tokens_per_s);
  for (const ScheduleKind schedule :
       {ScheduleKind::kModuleBatching, ScheduleKind::kPagedWeights, ScheduleKind::kOverlapped}) {
    options.schedule = schedule;
    const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
    EXPECT_EQ(plan.sizes.schedule, schedule);
    EXPECT_EQ(plan.execution->schedule, schedule);
    // The search over all of them finds nothing worse.
    EXPECT_LE(fast.execution->prediction.wall_s, plan.execution->prediction.wall_s * 1.01);
  }
}

// Predicted for 1, 2 and 3 devices with 16 cores for all.
std::vector<double> RatesOfDevices(EngineOptions options) {
  ModuleCosts costs = SomeCosts();
  costs.cores = 16;
  const Workload workload = UniformWorkload(30, 30, 200);
  options.devices.memory = "20%";
  const ModelFiles files = OpenModelFiles(options);
  std::vector<double> rates;
  for (const int devices : {1, 2, 3}) {
    options.devices.count = devices;
    const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
    EXPECT_EQ(std::ssize(plan.devices), devices);
    EXPECT_LE(plan.ledger.total_bytes(), options.machine_memory_bytes);
    const PhasePrediction& decode = plan.execution->prediction.decode;
    EXPECT_GE(decode.period_s, decode.roofline_s * 0.99) << devices;
    EXPECT_LE(decode.period_s, decode.serial_s * 1.01) << devices;
    EXPECT_EQ(decode.bottleneck, Resource::kLinkIn);
    rates.push_back(plan.execution->prediction.generated_tokens_per_s);
  }
  return rates;
}

// Each has a link of its own, which is the limit, and residents of its own. The batch is given:
// what memory holds of it depends on the class of numerics, and hidden states of a large one take a
// share of the first link.
TEST(BatchPlannerTest, PlansForSeveralEmulatedDevices) {
  EngineOptions options = DeviceOptionsOfJob(1e7);
  options.max_num_seqs = 48;
  options.max_num_batched_tokens = 96;
  const std::vector<double> rates = RatesOfDevices(options);
  EXPECT_GT(rates[1], 1.8 * rates[0]);
  EXPECT_GT(rates[2], 1.2 * rates[1]);
}

// More devices leave less of a tight memory for the batch, and are worth more than that.
TEST(BatchPlannerTest, MoreDevicesAreNotSlower) {
  const std::vector<double> rates = RatesOfDevices(DeviceOptionsOfJob(1e7));
  EXPECT_GT(rates[1], 1.5 * rates[0]);
  EXPECT_GT(rates[2], 1.1 * rates[1]);
}

// The largest batch that memory holds is the best one here, and lies between two steps of the
// search.
TEST(BatchPlannerTest, GoesToTheEdgeOfMemory) {
  ModuleCosts costs = SomeCosts();
  costs.cores = 16;
  const Workload workload = UniformWorkload(30, 30, 200);
  EngineOptions options = DeviceOptionsOfJob(1e7);
  options.devices.memory = "20%";
  options.devices.count = 2;
  const ModelFiles files = OpenModelFiles(options);
  for (const int64_t sequences : {142, 190}) {
    EngineOptions fixed = options;
    fixed.machine_memory_bytes = uint64_t{400} << 20;
    fixed.max_num_seqs = sequences;
    fixed.max_num_batched_tokens = 2 * sequences;
    const BatchPlan best = PlanBatchJob(fixed, files, workload, &costs);
    options.machine_memory_bytes = best.ledger.total_bytes();
    const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
    EXPECT_LT(plan.execution->prediction.wall_s, 1.01 * best.execution->prediction.wall_s)
        << sequences << ": " << plan.sizes.max_num_seqs << " sequences, "
        << plan.sizes.max_batch_tokens << " rows";
  }
}

TEST(BatchPlannerTest, PacketsAreSearchedUnlessTheyAreGiven) {
  const ModuleCosts costs = SomeCosts();
  const Workload workload = UniformWorkload(30, 30, 200);
  struct Link {
    double bytes_per_s, latency_us;
  };
  for (const Link& link : {Link{1e8, 3000}, Link{1e8, 0}, Link{2e7, 20}}) {
    EngineOptions options = DeviceOptionsOfJob(link.bytes_per_s);
    options.devices.emulated_link.latency_us = link.latency_us;
    options.packet_bytes = 16384;  // of the disk: five for an expert, and no bound on packets
    const ModelFiles files = OpenModelFiles(options);
    const BatchPlan plan = PlanBatchJob(options, files, workload, &costs);
    SCOPED_TRACE(link.latency_us);
    EXPECT_EQ(plan.execution->packet_bytes, PacketBytesOf(options, plan.sizes));
    for (const uint32_t packet : {16384u, 65536u, 131072u}) {
      EngineOptions given = options;
      given.device_packet_bytes = packet;
      const BatchPlan other = PlanBatchJob(given, files, workload, &costs);
      EXPECT_EQ(other.sizes.packet_bytes, packet);
      EXPECT_EQ(other.execution->packet_bytes, packet);
      EXPECT_LE(plan.execution->prediction.wall_s, other.execution->prediction.wall_s * 1.01);
    }
    // Where a copy takes long whatever its size, an expert is one.
    if (link.latency_us > 1000) {
      EXPECT_GE(plan.sizes.packet_bytes, files.experts->layout().slot_bytes);
    }
  }
}

// Runs a job as it was planned from measured costs: what does not depend on the machine's speed has
// to come out exactly, and every quantity of the report has its prediction.
class PlannedJobTest : public testing::TestWithParam<int> {};  // devices

TEST_P(PlannedJobTest, RunsAsPlanned) {
  const bool device = GetParam() > 0;
  EngineOptions options = device ? DeviceOptionsOfJob(2e9) : JobOptions();
  if (GetParam() > 1) {
    options.devices.count = GetParam();
    options.devices.memory = "20%";
  }
  if (!device) options.expert_memory = "40%";
  const ModelFiles files = OpenModelFiles(options);
  const ModuleCosts costs = MeasureSample(options, files);
  EXPECT_GT(costs.link.value, 0);
  EXPECT_GT(costs[Module::kExpert].per_unit_s + costs[Module::kExpert].fixed_s, 0);
  ASSERT_FALSE(costs.routing.empty());
  EXPECT_NEAR(costs.routing.front().experts, files.config.top_k(), 1e-9);
  EXPECT_GT(costs.routing.back().experts, files.config.top_k());
  const ModuleCosts again = ParseModuleCosts(SerializeModuleCosts(costs), "costs");
  EXPECT_EQ(SerializeModuleCosts(again), SerializeModuleCosts(costs));

  constexpr int kRequests = 40;
  constexpr int kPrompt = 23;
  constexpr int kGenerated = 9;
  options.prefix_cache = false;
  const BatchPlan plan =
      PlanBatchJob(options, files, UniformWorkload(kPrompt, kGenerated, kRequests), &costs);
  BatchReport report;
  {
    BatchEngine engine({options, OpenModelFiles(options), plan});
    std::vector<std::shared_ptr<Collector>> collectors;
    std::vector<EngineRequest> requests;
    std::vector<std::shared_ptr<OutputSink>> sinks;
    for (int i = 0; i < kRequests; ++i) {
      std::vector<int32_t> prompt(kPrompt);
      for (int j = 0; j < kPrompt; ++j) prompt[static_cast<size_t>(j)] = (i * 37 + j * 11) % 4000;
      EngineRequest request = Greedy(std::move(prompt), kGenerated);
      request.ignore_eos = true;
      requests.push_back(std::move(request));
      collectors.push_back(std::make_shared<Collector>());
      sinks.push_back(collectors.back());
    }
    engine.Submit(std::move(requests), std::move(sinks));
    for (const auto& collector : collectors) {
      EXPECT_EQ(collector->Wait().error, "");
      report.output_tokens += static_cast<int64_t>(collector->tokens.size());
    }
    report.plan = engine.plan();
    report.stats = engine.Stats();
    report.timeline = engine.TakeTimeline();
    report.preemptions = engine.preemptions();
    report.seconds = 1;
  }
  const PlanPrediction& prediction = plan.execution->prediction;
  EXPECT_EQ(report.output_tokens, kRequests * kGenerated);
  EXPECT_EQ(prediction.iterations, report.stats.steps);
  EXPECT_EQ(prediction.preemptions, report.preemptions);
  std::map<std::string, Comparison> rows;
  for (const Comparison& row : PlanAgainstRun(report)) rows[row.name] = row;
  EXPECT_EQ(rows.at("passes").ratio(), 1);
  // What the routers choose is only known on average.
  EXPECT_NEAR(rows.at("expert bytes read").ratio().value_or(0), 1, 0.4);
  for (const char* name : {"attention", "experts", "link busy", "job", "logits and sampling"}) {
    EXPECT_GT(rows.at(name).predicted.value_or(0), 0) << name;
    EXPECT_GT(rows.at(name).measured, 0) << name;
  }
  for (const char* name :
       {"attention outputs to the device", "queries, keys and values to the host"}) {
    EXPECT_EQ(rows.at(name).predicted.has_value(), device);
    EXPECT_EQ(rows.at(name).measured > 0, device);
  }
  const Json json = BatchReportJson(report);
  EXPECT_EQ(json["plan_against_run"].size(), rows.size());
  EXPECT_EQ(json["plan"]["policy"]["batch_sequences"], plan.sizes.max_num_seqs);
  EXPECT_NE(BatchReportHtml(report).find("Plan against run"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(HostAndDevices, PlannedJobTest, testing::Values(0, 1, 2));

// Costs of a layer are means over layers with attention and with recurrent state.
TEST(ModuleProfilerTest, MeasuresLayersOfBothKinds) {
  EngineOptions options = JobOptions();
  options.model_dir = MOESAIC_TEST_DATA_DIR "/models/qwen3_next_bf16";
  const ModelFiles files = OpenModelFiles(options);
  const ModuleCosts costs = MeasureSample(options, files);
  EXPECT_GT(costs[Module::kAttentionIn].per_unit_s, 0);
  EXPECT_GT(costs[Module::kOutput].per_unit_s, 0);
  EXPECT_NE(costs.key.find("|3 linear 2 4 16 16"), std::string::npos) << costs.key;
  const BatchPlan plan = PlanBatchJob(options, files, UniformWorkload(60, 20, 300), &costs);
  ASSERT_TRUE(plan.execution.has_value());
  EXPECT_EQ(plan.sizes.num_state_slots, plan.sizes.max_num_seqs + options.state_snapshots);
  EXPECT_EQ(
      plan.ledger.bytes("recurrent state"),
      static_cast<uint64_t>(plan.sizes.num_state_slots) * Model::StateSlotBytes(files.config));
}

TEST(ModuleProfilerTest, TheKeyNamesWhatCostsDependOn) {
  const EngineOptions options = JobOptions();
  const ModelFiles files = OpenModelFiles(options);
  const HostDescription host = DescribeHost(ReadTopology());
  ModuleProfilerInputs inputs{files.config, *files.tensors, *files.experts, SelectKernels()};
  const std::string key = ModuleCostsKey(inputs, host);
  EXPECT_EQ(ModuleCostsKey(inputs, host), key);
  inputs.threads = 7;
  EXPECT_NE(ModuleCostsKey(inputs, host), key);
  inputs.threads = 1;
  inputs.kernels.product_steps[0] = {.steps = {{3, "scalar", {}}}, .count = 1};
  EXPECT_NE(ModuleCostsKey(inputs, host), key);
  inputs.kernels = SelectKernels();
  inputs.streaming.link_bytes_per_s = 1 << 20;
  EXPECT_NE(ModuleCostsKey(inputs, host), key);
  inputs.memory_bytes = 1 << 20;
  EXPECT_EQ(Caught([&] { MeasureModules(inputs, host); }).kind(), ErrorKind::kResourceExhausted);
}

}  // namespace
}  // namespace moesaic
