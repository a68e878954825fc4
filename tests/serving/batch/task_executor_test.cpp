// Tasks run once each, in launch order on their lane and after what they wait for, whatever the
// graph and the lanes.

#include "serving/batch/task_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/perf/layer_schedules.h"

namespace moesaic {
namespace {

constexpr std::array<int, kNumResources> kLanes[] = {{0, 0, 0, 0}, {1, 2, 3, 0}, {1, 1, 2, 0}};

// Bodies run at the same time: what they wait for must be visible in plain memory.
void ExpectOrder(TaskExecutor& executor, const TaskGraph& graph,
                 const std::array<int, kNumResources>& lane_of) {
  std::vector<uint8_t> ended(graph.tasks().size(), 0);
  std::vector<std::vector<const Task*>> order(kNumResources);
  executor.Run(graph, [&](const Task& task) {
    for (const int before : graph.after(task)) {
      EXPECT_EQ(ended[static_cast<size_t>(before)], 1) << TaskKindName(task.kind);
    }
    order[static_cast<size_t>(lane_of[static_cast<size_t>(task.resource)])].push_back(&task);
    ended[static_cast<size_t>(&task - graph.tasks().data())] = 1;
  });
  size_t ran = 0;
  for (const auto& lane : order) {
    ran += lane.size();
    EXPECT_TRUE(std::is_sorted(lane.begin(), lane.end()));
  }
  EXPECT_EQ(ran, graph.tasks().size());
}

TaskGraph RandomGraph(uint32_t seed) {
  std::mt19937 random(seed);
  TaskGraph graph(false);
  const auto tasks = static_cast<int>(1 + random() % 60);
  for (int t = 0; t < tasks; ++t) {
    std::vector<int> after;
    for (int n = static_cast<int>(random() % 4); n > 0 && t > 0; --n) {
      after.push_back(static_cast<int>(random() % static_cast<uint32_t>(t)));
    }
    graph.Add(TaskKind::kExpert, 0, t, static_cast<Resource>(random() % kNumResources), 1, after);
  }
  return graph;
}

TEST(TaskExecutorTest, RandomGraphs) {
  for (const auto& lane_of : kLanes) {
    TaskExecutor executor(lane_of);
    for (uint32_t seed = 0; seed < 100; ++seed) ExpectOrder(executor, RandomGraph(seed), lane_of);
  }
}

TEST(TaskExecutorTest, Schedules) {
  LayerTimes times;
  times.micro_batches = 3;
  times.pre_attention_s = times.offload_qkv_s = times.cpu_attention_s = times.load_hidden_s = 1;
  times.post_attention_s = times.expert_s = 1;
  times.experts = 1;
  for (const auto& lane_of : kLanes) {
    TaskExecutor executor(lane_of);
    for (const ScheduleKind kind :
         {ScheduleKind::kPagedWeights, ScheduleKind::kOverlapped, ScheduleKind::kModuleBatching}) {
      ExpectOrder(executor, BuildSchedule(kind, times, 5), lane_of);
    }
  }
}

TEST(TaskExecutorTest, AFailedTaskEndsTheRunAndNotTheExecutor) {
  for (const auto& lane_of : kLanes) {
    TaskExecutor executor(lane_of);
    for (uint32_t seed = 0; seed < 30; ++seed) {
      const TaskGraph graph = RandomGraph(seed);
      const int failing = static_cast<int>(seed % graph.tasks().size());
      std::atomic<int> ran{0};
      const auto body = [&](const Task& task) {
        ++ran;
        if (task.index == failing) throw std::runtime_error("broken");
      };
      EXPECT_THROW(executor.Run(graph, body), std::runtime_error);
      EXPECT_LE(ran, static_cast<int>(graph.tasks().size()));
      ExpectOrder(executor, graph, lane_of);
    }
  }
}

}  // namespace
}  // namespace moesaic
