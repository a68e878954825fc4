#include "serving/plan/throughput_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/plan/plan_candidate.h"
#include "tests/serving/plan/plan_presets.h"

namespace moesaic {
namespace {

Constant Given(double value) { return {value, Provenance::kAssumed, "of the test"}; }

// A machine without a GPU: 2 GB/s of disk, 20 GB/s of memory, 0.3 TFLOP/s.
MachineSpec Laptop(double memory_gb) {
  MachineSpec machine;
  machine.name = "laptop";
  machine.link_in_bytes_per_s = Given(2e9);
  machine.host_memory_bytes = Given(memory_gb * 1e9);
  machine.host_bytes_per_s = Given(20e9);
  machine.cpu_flop_per_s = Given(0.3e12);
  machine.cpu_attention_bytes_per_s = Given(20e9);
  machine.threads = 2;
  return machine;
}

PlanOptions Quick() {
  PlanOptions options;
  options.what_if = false;
  return options;
}

std::string PlanRefusal(const std::string& model, const MachineSpec& machine, ErrorKind kind) {
  try {
    PlanThroughput(ModelPreset(model), machine, UniformWorkload(100, 10, 10), Quick());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "";
}

void ExpectSound(const ExecutionPlan& plan, const ModelShape& model) {
  const std::string what = plan.model + " on " + plan.machine;
  EXPECT_FALSE(plan.ledgers.empty()) << what;
  for (const MemoryLedger& ledger : plan.ledgers) {
    EXPECT_TRUE(ledger.fits()) << what << " " << ledger.memory;
  }
  for (const PhasePrediction* phase : {&plan.prediction.prefill, &plan.prediction.decode}) {
    EXPECT_LE(phase->roofline_s, phase->period_s) << what;
    EXPECT_LE(phase->period_s, phase->serial_s) << what;
    EXPECT_GE(phase->iteration_s,
              phase->period_s * static_cast<double>(model.sparse_layers()) * (1 - 1e-12))
        << what;
    EXPECT_GT(phase->busy_s[static_cast<int>(phase->bottleneck)], 0) << what;
  }
  EXPECT_GE(plan.batch_sequences, 1);
  EXPECT_GE(plan.resident_experts, 0);
  EXPECT_LE(plan.resident_experts, model.num_experts);
  EXPECT_EQ(plan.expert_buffers == 0, plan.resident_experts == model.num_experts) << what;
  EXPECT_GT(plan.prediction.generated_tokens_per_s, 0) << what;
  EXPECT_NEAR(plan.prediction.prefill_s + plan.prediction.decode_s, plan.prediction.wall_s,
              1e-9 * plan.prediction.wall_s);
}

TEST(ThroughputPlannerTest, PlansOfAllPresetsAreSound) {
  const Workload workload = UniformWorkload(98, 32, 300);
  for (const char* machine_name : {"t4", "l4", "a40", "h100"}) {
    for (const char* model_name : {"mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b",
                                   "gpt-oss-20b-mxfp4", "olmoe-1b-7b"}) {
      const ModelShape model = ModelPreset(model_name);
      ExpectSound(PlanThroughput(model, MachinePreset(machine_name), workload, Quick()), model);
    }
  }
}

TEST(ThroughputPlannerTest, EveryScheduleCanBeAskedFor) {
  const ModelShape model = ModelPreset("mixtral-8x7b");
  PlanOptions options = Quick();
  double best = 0;
  for (const ScheduleKind kind :
       {ScheduleKind::kPagedWeights, ScheduleKind::kOverlapped, ScheduleKind::kModuleBatching}) {
    options.schedule = kind;
    const ExecutionPlan plan =
        PlanThroughput(model, MachinePreset("a40"), UniformWorkload(98, 64, 2000), options);
    EXPECT_EQ(plan.schedule, kind);
    EXPECT_EQ(plan.prediction.lens.has_value(), kind == ScheduleKind::kOverlapped);
    ExpectSound(plan, model);
    best = std::max(best, plan.prediction.generated_tokens_per_s);
  }
  const ExecutionPlan free =
      PlanThroughput(model, MachinePreset("a40"), UniformWorkload(98, 64, 2000), Quick());
  EXPECT_DOUBLE_EQ(free.prediction.generated_tokens_per_s, best);
}

TEST(ThroughputPlannerTest, ManyRequestsFavourMixedIterations) {
  // Whole batches drain; mixed iterations refill: MoE-Lens' case, keys and values the limit.
  MachineSpec machine = MachinePreset("a40");
  machine.host_memory_bytes = Given(180e9);
  machine.device_memory_bytes = Given(24e9);
  const ModelShape model = ModelPreset("mixtral-8x7b");
  const Workload workload = UniformWorkload(98, 128, 40000);
  EXPECT_EQ(PlanThroughput(model, machine, workload, Quick()).schedule, ScheduleKind::kOverlapped);
}

TEST(ThroughputPlannerTest, WithoutAGpuTheDiskIsTheLink) {
  const ModelShape model = ModelPreset("qwen3-30b-a3b");
  const ExecutionPlan plan =
      PlanThroughput(model, Laptop(20), UniformWorkload(98, 64, 200), Quick());
  ExpectSound(plan, model);
  EXPECT_EQ(plan.ledgers.size(), 1u);
  EXPECT_EQ(plan.ledgers[0].memory, "host");
  EXPECT_FALSE(plan.ffn_on_device);
  const PhasePrediction& decode = plan.prediction.decode;
  EXPECT_EQ(decode.bottleneck, Resource::kLinkIn);
  EXPECT_EQ(decode.busy_s[static_cast<int>(Resource::kLinkOut)], 0);
  EXPECT_EQ(decode.busy_s[static_cast<int>(Resource::kCpu)], 0);
  // The disk carries what is absent and used of each layer.
  const double used = ExpectedActiveExperts(128, 8, static_cast<double>(plan.batch_sequences));
  const double bytes = used * static_cast<double>(128 - plan.resident_experts) / 128 *
                       static_cast<double>(model.ExpertBytes());
  EXPECT_NEAR(decode.busy_s[static_cast<int>(Resource::kLinkIn)], bytes / 2e9, 1e-9);
}

TEST(ThroughputPlannerTest, WhatFitsIsNotStreamed) {
  const ModelShape model = ModelPreset("olmoe-1b-7b");
  const ExecutionPlan plan =
      PlanThroughput(model, Laptop(40), UniformWorkload(98, 64, 50), Quick());
  ExpectSound(plan, model);
  EXPECT_EQ(plan.resident_experts, model.num_experts);
  EXPECT_EQ(plan.prediction.decode.bottleneck, Resource::kDevice);
  EXPECT_EQ(plan.prediction.decode.busy_s[static_cast<int>(Resource::kLinkIn)], 0);
}

TEST(ThroughputPlannerTest, ABetterMachineIsNeverWorse) {
  const ModelShape model = ModelPreset("mixtral-8x7b");
  const Workload workload = UniformWorkload(98, 64, 1000);
  const MachineSpec l4 = MachinePreset("l4");
  const double base =
      PlanThroughput(model, l4, workload, Quick()).prediction.generated_tokens_per_s;
  for (Constant MachineSpec::*member :
       {&MachineSpec::link_in_bytes_per_s, &MachineSpec::host_memory_bytes,
        &MachineSpec::device_memory_bytes, &MachineSpec::device_flop_per_s,
        &MachineSpec::cpu_attention_bytes_per_s}) {
    MachineSpec better = l4;
    (better.*member).value *= 1.5;
    // Within what the pruning and the rounding of loads leave open.
    EXPECT_GE(PlanThroughput(model, better, workload, Quick()).prediction.generated_tokens_per_s,
              base * 0.99);
  }
}

TEST(ThroughputPlannerTest, GivenSettingsAreKept) {
  PlanOptions options = Quick();
  options.schedule = ScheduleKind::kPagedWeights;
  options.batch_sequences = 504;
  options.micro_batches = 14;
  options.resident_experts = 0;
  const ExecutionPlan plan = PlanThroughput(ModelPreset("mixtral-8x7b"), MachinePreset("l4"),
                                            UniformWorkload(418, 32, 504), options);
  EXPECT_EQ(plan.batch_sequences, 504);
  EXPECT_EQ(plan.micro_batch_sequences, 36);
  EXPECT_EQ(plan.resident_experts, 0);
  // 8 experts of Mixtral over the link: nothing is resident.
  EXPECT_GE(plan.prediction.decode.busy_s[static_cast<int>(Resource::kLinkIn)],
            8 * 352321536.0 / 12.35e9);
}

TEST(ThroughputPlannerTest, DenseWeightsThatDoNotFitAreStreamedForLargeBatches) {
  // 26 GB of dense weights on a device of 24 GB, and host memory for some hundred sequences.
  const ModelShape model = ModelPreset("deepseek-v2");
  PlanOptions options = Quick();
  for (const ScheduleKind kind : {ScheduleKind::kPagedWeights, ScheduleKind::kModuleBatching}) {
    options.schedule = kind;
    const ExecutionPlan plan =
        PlanThroughput(model, MachinePreset("a5000"), UniformWorkload(512, 256, 2000), options);
    ExpectSound(plan, model);
    EXPECT_FALSE(plan.dense_resident);
    EXPECT_GT(plan.batch_sequences, 300);
  }
}

TEST(ThroughputPlannerTest, HiddenStatesLeaveRoomForKeysAndValues) {
  // Four times the tokens that hide a layer's copies would take 18 GB of the 43 GB that the weights
  // leave; a fourth of them does not.
  const ModelShape model = ModelPreset("deepseek-v2");
  PlanOptions options = Quick();
  options.schedule = ScheduleKind::kModuleBatching;
  const ExecutionPlan plan =
      PlanThroughput(model, MachinePreset("a5000"), UniformWorkload(512, 256, 8500), options);
  const MemoryLedger& host = plan.ledgers.at(1);
  const auto bytes_of = [&](const std::string& name) {
    for (const MemoryItem& item : host.items) {
      if (item.name == name) return static_cast<double>(item.bytes);
    }
    return 0.0;
  };
  EXPECT_GT(bytes_of("keys and values"),
            0.8 * (bytes_of("keys and values") + bytes_of("hidden states")));
  EXPECT_GT(bytes_of("keys and values"), 35e9);
}

TEST(ThroughputPlannerTest, PacketsBalanceOverheadWithWaiting) {
  const ModelShape model = ModelPreset("mixtral-8x7b");
  PlanOptions options = Quick();
  options.schedule = ScheduleKind::kModuleBatching;
  options.batch_sequences = 500;
  options.micro_batches = 8;
  const auto packet = [&](double overhead_s) {
    MachineSpec machine = MachinePreset("a40");
    machine.copy_overhead_s = Given(overhead_s);
    return PlanThroughput(model, machine, UniformWorkload(98, 64, 500), options).packet_bytes;
  };
  const uint64_t free = packet(0);
  const uint64_t dear = packet(2e-3);
  EXPECT_LT(free, dear);
  EXPECT_LT(free, model.ExpertBytes() / 4);
  // A disk's best block is measured.
  MachineSpec disk = Laptop(120);
  disk.disk_block_bytes = 768 << 10;
  EXPECT_EQ(PlanThroughput(model, disk, UniformWorkload(98, 64, 100), Quick()).packet_bytes,
            disk.disk_block_bytes);
}

TEST(ThroughputPlannerTest, WhatIfPlansAreSortedAndNameWhatHelps) {
  PlanOptions options;
  const ExecutionPlan plan = PlanThroughput(ModelPreset("mixtral-8x7b"), MachinePreset("l4"),
                                            UniformWorkload(77, 64, 500), options);
  ASSERT_EQ(plan.what_if.size(), 6u);
  for (size_t i = 1; i < plan.what_if.size(); ++i) {
    EXPECT_GE(plan.what_if[i - 1].gain, plan.what_if[i].gain);
  }
  EXPECT_EQ(plan.prediction.decode.bottleneck, Resource::kLinkIn);
  bool link = false;
  for (const WhatIf& answer : plan.what_if)
    link |= answer.change == "link rate +10%" && answer.gain > 0.03;
  EXPECT_TRUE(link);
}

TEST(ThroughputPlannerTest, MixedLengthsAreSimulated) {
  Workload workload;
  for (int i = 0; i < 200; ++i) workload.requests.push_back({20 + 7 * (i % 30), 5 + i % 60});
  const ModelShape model = ModelPreset("qwen3-30b-a3b");
  const ExecutionPlan plan = PlanThroughput(model, Laptop(24), workload, Quick());
  ExpectSound(plan, model);
  EXPECT_NEAR(plan.prediction.generated_tokens_per_s * plan.prediction.wall_s,
              static_cast<double>(workload.generated_tokens()), 1e-3);
}

TEST(ThroughputPlannerTest, WhatCannotBePlannedIsRefusedWithAReason) {
  EXPECT_NE(PlanRefusal("dbrx", MachinePreset("t4"), ErrorKind::kResourceExhausted)
                .find("(--host-memory)"),
            std::string::npos);
  MachineSpec small = MachinePreset("h100");
  small.device_memory_bytes = Given(1e9);
  EXPECT_NE(
      PlanRefusal("mixtral-8x7b", small, ErrorKind::kResourceExhausted).find("(--gpu-memory)"),
      std::string::npos);
  EXPECT_NE(PlanRefusal("qwen3-30b-a3b", Laptop(1), ErrorKind::kResourceExhausted).find("missing"),
            std::string::npos);
  EXPECT_NE(
      PlanRefusal("switch-base-128", Laptop(100), ErrorKind::kUnsupported).find("encoder-decoder"),
      std::string::npos);
  EXPECT_THROW(PlanThroughput(ModelPreset("olmoe-1b-7b"), Laptop(40), Workload(), Quick()), Error);
}

}  // namespace
}  // namespace moesaic
