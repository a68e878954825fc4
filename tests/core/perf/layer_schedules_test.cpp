#include "core/perf/layer_schedules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace moesaic {
namespace {

std::string LaunchOrder(const TaskGraph& graph, Resource only, bool all) {
  std::string order;
  for (const Task& task : graph.tasks()) {
    if (!all && task.resource != only) continue;
    const char* name = "?";
    switch (task.kind) {
      case TaskKind::kPreAttention:
        name = "A";
        break;
      case TaskKind::kOffloadQkv:
        name = "O";
        break;
      case TaskKind::kCpuAttention:
        name = "B";
        break;
      case TaskKind::kLoadHidden:
        name = "H";
        break;
      case TaskKind::kPostAttention:
        name = "C";
        break;
      case TaskKind::kWeights:
        name = "W";
        break;
      case TaskKind::kExpert:
        name = "E";
        break;
      case TaskKind::kLoadKv:
        name = "K";
        break;
      case TaskKind::kDeviceAttention:
        name = "D";
        break;
    }
    order += std::string(order.empty() ? "" : " ") + name + std::to_string(task.layer) +
             std::to_string(task.index);
  }
  return order;
}

LayerTimes PipeTimes(int64_t micro_batches) {
  LayerTimes times;
  times.micro_batches = micro_batches;
  times.pre_attention_s = 1;
  times.offload_qkv_s = 0.1;
  times.cpu_attention_s = 2;
  times.load_hidden_s = 0.1;
  times.post_attention_s = 3;
  times.weights_copy_s = 6;
  return times;
}

TEST(TaskGraphTest, LongestPathOfAHandMadeGraph) {
  TaskGraph graph(false);
  const int a = graph.Add(TaskKind::kPreAttention, 0, 0, Resource::kDevice, 2, {});
  const int b = graph.Add(TaskKind::kCpuAttention, 0, 0, Resource::kCpu, 5, {a});
  const int c = graph.Add(TaskKind::kWeights, 0, 0, Resource::kLinkIn, 4, {});
  const int d = graph.Add(TaskKind::kPostAttention, 0, 0, Resource::kDevice, 1, {b, c});
  EXPECT_DOUBLE_EQ(graph.tasks()[b].start_s, 2);
  EXPECT_DOUBLE_EQ(graph.tasks()[d].start_s, 7);
  EXPECT_DOUBLE_EQ(graph.makespan_s(), 8);
  // A free task waits for those launched before it on its resource.
  const int e = graph.Add(TaskKind::kPreAttention, 1, 0, Resource::kDevice, 1, {});
  EXPECT_DOUBLE_EQ(graph.tasks()[e].start_s, 8);
}

TEST(TaskGraphTest, WithoutAGpuDeviceAndCpuAreOne) {
  TaskGraph graph(true);
  graph.Add(TaskKind::kPreAttention, 0, 0, Resource::kDevice, 2, {});
  const int cpu = graph.Add(TaskKind::kCpuAttention, 0, 1, Resource::kCpu, 5, {});
  EXPECT_DOUBLE_EQ(graph.tasks()[cpu].start_s, 2);
}

TEST(LayerSchedulesTest, PagedWeightsLaunchOrder) {
  // Algorithm 1 with L = 2, U = 3, without the copies to pinned memory. A: pre-attention, O: QKV to
  // the host, B: CPU attention, H: hidden states back, W: page, C: post-attention.
  const TaskGraph graph = BuildSchedule(ScheduleKind::kPagedWeights, PipeTimes(3), 2);
  EXPECT_EQ(LaunchOrder(graph, Resource::kDevice, true),
            "A00 O00 B00 A01 O01 B01 "
            "H00 W10 C00 A02 O02 B02 "
            "H01 W11 C01 A10 O10 B10 "
            "H02 W12 C02 A11 O11 B11 "
            "H10 W20 C10 A12 O12 B12 "
            "H11 W21 C11 "
            "H12 W22 C12");
  EXPECT_EQ(LaunchOrder(graph, Resource::kLinkIn, false),
            "H00 W10 H01 W11 H02 W12 H10 W20 H11 W21 H12 W22");
}

TEST(LayerSchedulesTest, PagedWeightsDependencies) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.01, 3);
  for (const int count : {1, 2, 3, 5}) {
    LayerTimes times = PipeTimes(count);
    times.cpu_attention_s = seconds(random);
    times.post_attention_s = seconds(random);
    times.weights_copy_s = seconds(random) * count;
    const int layers = 6;
    const TaskGraph graph = BuildSchedule(ScheduleKind::kPagedWeights, times, layers);
    std::vector<double> pages(layers + 1, 0);
    std::vector<double> post_end(layers, 0);
    std::vector<std::vector<double>> hidden(layers, std::vector<double>(count, -1));
    for (const Task& task : graph.tasks()) {
      if (task.kind == TaskKind::kWeights)
        pages[task.layer] = std::max(pages[task.layer], task.end_s);
      if (task.kind == TaskKind::kLoadHidden) hidden[task.layer][task.index] = task.end_s;
      if (task.kind == TaskKind::kPostAttention) {
        post_end[task.layer] = std::max(post_end[task.layer], task.end_s);
      }
    }
    for (const Task& task : graph.tasks()) {
      if (task.kind == TaskKind::kPostAttention) {
        EXPECT_GE(task.start_s, pages[task.layer]);  // every page came before its layer
        ASSERT_GE(hidden[task.layer][task.index], 0);
        EXPECT_GE(task.start_s, hidden[task.layer][task.index]);
      }
      if (task.kind == TaskKind::kWeights && task.layer >= 2) {
        EXPECT_GE(task.start_s, post_end[task.layer - 2]);  // two layer buffers
      }
    }
    // Hidden states never wait behind more than one page.
    int pages_since_hidden = 0;
    for (const Task& task : graph.tasks()) {
      if (task.resource != Resource::kLinkIn) continue;
      pages_since_hidden = task.kind == TaskKind::kWeights ? pages_since_hidden + 1 : 0;
      EXPECT_LE(pages_since_hidden, 1);
    }
  }
}

TEST(LayerSchedulesTest, OverlappedStageOrder) {
  LayerTimes times = PipeTimes(2);
  times.offload_qkv_s = 0;
  times.load_hidden_s = 0;
  const TaskGraph graph = BuildSchedule(ScheduleKind::kOverlapped, times, 3);
  // Group 0 is alpha. Prologue A00 | A01 || B00; stage i: [C_i(a) A_i+1(a) || B_i(b)],
  // [C_i(b) A_i+1(b) || B_i+1(a)]; epilogue [C_2(a) || B_2(b)] [C_2(b)].
  EXPECT_EQ(LaunchOrder(graph, Resource::kDevice, false),
            "A00 A01 C00 A10 C01 A11 C10 A20 C11 A21 C20 C21");
  EXPECT_EQ(LaunchOrder(graph, Resource::kCpu, false), "B00 B01 B10 B11 B20 B21");
  EXPECT_EQ(LaunchOrder(graph, Resource::kLinkIn, false), "W10 W20");
}

TEST(LayerSchedulesTest, OverlappedPhasesEndTogether) {
  LayerTimes times = PipeTimes(2);
  times.offload_qkv_s = 0;
  times.load_hidden_s = 0;
  times.weights_copy_s = 1;
  // A phase: device 1 + 3 against CPU 2; then CPU 7.
  EXPECT_DOUBLE_EQ(PredictLayer(ScheduleKind::kOverlapped, times).period_s, 8);
  times.cpu_attention_s = 7;
  EXPECT_DOUBLE_EQ(PredictLayer(ScheduleKind::kOverlapped, times).period_s, 14);
  times.weights_copy_s = 20;
  EXPECT_DOUBLE_EQ(PredictLayer(ScheduleKind::kOverlapped, times).period_s, 20);
}

TEST(LayerSchedulesTest, ModuleBatchingHidesCopiesBehindExperts) {
  LayerTimes times;
  times.shared_cpu = true;
  times.pre_attention_s = 1;
  times.post_attention_s = 1;
  times.experts = 4;
  times.streamed_experts = 4;
  times.expert_s = 2;
  times.expert_copy_s = 1;
  times.expert_buffers = 1;
  // One slot: copy and compute alternate, but the first copy hides behind attention.
  EXPECT_DOUBLE_EQ(PredictLayer(ScheduleKind::kModuleBatching, times).period_s, 2 + 4 * 2 + 3 * 1);
  times.expert_buffers = 2;
  EXPECT_DOUBLE_EQ(PredictLayer(ScheduleKind::kModuleBatching, times).period_s, 10);
  times.expert_copy_s = 5;
  const PhasePrediction link_bound = PredictLayer(ScheduleKind::kModuleBatching, times);
  EXPECT_DOUBLE_EQ(link_bound.period_s, 20);
  EXPECT_EQ(link_bound.bottleneck, Resource::kLinkIn);
  EXPECT_EQ(link_bound.next_bottleneck, Resource::kDevice);
  EXPECT_DOUBLE_EQ(link_bound.slack, 0.5);
  times.streamed_experts = 1;
  EXPECT_DOUBLE_EQ(PredictLayer(ScheduleKind::kModuleBatching, times).period_s, 10);
}

TEST(LayerSchedulesTest, ASlotIsNotOverwrittenWhileItIsRead) {
  LayerTimes times = PipeTimes(2);
  times.weights_copy_s = 0;
  times.experts = 5;
  times.streamed_experts = 3;
  times.expert_s = 0.5;
  times.expert_copy_s = 0.7;
  times.expert_buffers = 2;
  const TaskGraph graph = BuildSchedule(ScheduleKind::kModuleBatching, times, 5);
  std::vector<double> copy_start;
  std::vector<double> copy_end;
  std::vector<double> used;  // end of the streamed experts, in order
  std::vector<double> use_start;
  for (const Task& task : graph.tasks()) {
    if (task.kind == TaskKind::kWeights) {
      copy_start.push_back(task.start_s);
      copy_end.push_back(task.end_s);
    }
    if (task.kind == TaskKind::kExpert && task.index >= 2) {
      use_start.push_back(task.start_s);
      used.push_back(task.end_s);
    }
  }
  ASSERT_EQ(copy_start.size(), 15u);
  ASSERT_EQ(used.size(), 15u);
  for (size_t i = 0; i < used.size(); ++i) {
    EXPECT_GE(use_start[i], copy_end[i]);
    if (i >= 2) {
      EXPECT_GE(copy_start[i], used[i - 2]);
    }
  }
}

TEST(LayerSchedulesTest, PeriodLiesBetweenRooflineAndSerialSum) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> coin(0, 3);
    std::uniform_real_distribution<double> exponent(-3, 1);
    const auto seconds = [&] { return coin(random) == 0 ? 0 : std::pow(10, exponent(random)); };
    LayerTimes times;
    times.shared_cpu = coin(random) == 0;
    times.micro_batches = std::uniform_int_distribution<int>(1, 9)(random);
    times.pre_attention_s = seconds();
    times.cpu_attention_s = seconds();
    if (!times.shared_cpu) {
      times.offload_qkv_s = seconds();
      times.load_hidden_s = seconds();
      times.load_kv_s = seconds();
    }
    times.device_attention_s = seconds();
    times.post_attention_s = 1e-3 + seconds();
    times.weights_copy_s = seconds();
    times.experts = std::uniform_int_distribution<int>(0, 12)(random);
    times.streamed_experts = std::uniform_int_distribution<int64_t>(0, times.experts)(random);
    times.expert_s = seconds();
    times.expert_copy_s = seconds();
    times.expert_buffers = std::uniform_int_distribution<int>(1, 15)(random);
    for (const ScheduleKind kind :
         {ScheduleKind::kPagedWeights, ScheduleKind::kOverlapped, ScheduleKind::kModuleBatching}) {
      const PhasePrediction phase = PredictLayer(kind, times);
      EXPECT_LE(phase.roofline_s, phase.period_s) << ScheduleKindName(kind) << " seed " << seed;
      EXPECT_LE(phase.period_s, phase.serial_s) << ScheduleKindName(kind) << " seed " << seed;
      // The whole pipeline takes its layers' periods and what fills and drains it.
      const int layers = 100;
      const double makespan = BuildSchedule(kind, times, layers).makespan_s();
      EXPECT_GE(makespan, (layers - 3) * phase.roofline_s * (1 - 1e-9)) << "seed " << seed;
      EXPECT_LE(makespan, (layers + 2) * phase.serial_s * (1 + 1e-9)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace moesaic
