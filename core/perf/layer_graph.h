// TaskGraph: the tasks of a pipeline's layers, what each waits for, and when it ends. Predictions
// read their ends; the throughput engine runs them (serving/batch/task_executor). Every
// resource (device stream, the two directions of the link, CPU pool) runs its tasks one at a time
// in the order in which they were launched; without that chain a longest path would be a bound for
// a machine with unlimited resources.
//
// Plain object of one thread. Tasks are added in launch order, so what a task waits for is there
// already, and ends are known as tasks are added.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/perf/execution_plan.h"

namespace moesaic {

enum class TaskKind {
  kPreAttention,  // norm and QKV projections of a micro-batch
  kOffloadQkv,    // its queries, new keys and values, to the host
  kCpuAttention,  // decode attention of a micro-batch on the CPU
  kLoadHidden,    // attention output, to the device
  kLoadKv,        // keys and values, to the device
  kDeviceAttention,
  kPostAttention,  // output projection, router, shared expert; paged weights: the experts as well
  kExpert,         // one expert over the batch
  kWeights,        // experts (and dense weights that are not resident), to the device
};
const char* TaskKindName(TaskKind kind);

struct Task {
  TaskKind kind = TaskKind::kPreAttention;
  int layer = 0;
  int index = 0;  // micro-batch, group, page or expert
  Resource resource = Resource::kDevice;
  double seconds = 0;
  double start_s = 0;
  double end_s = 0;
  size_t after_begin = 0;  // what it waits for: TaskGraph::after
  size_t after_end = 0;
};

class TaskGraph {
 public:
  static constexpr int kNone = -1;

  // `shared_cpu`: device and CPU pool are one processor (a machine without a GPU).
  explicit TaskGraph(bool shared_cpu) : shared_cpu_(shared_cpu) {}

  // Launches a task that waits for `after` (kNone entries are ignored). Returns its number.
  int Add(TaskKind kind, int layer, int index, Resource resource, double seconds,
          std::initializer_list<int> after);
  int Add(TaskKind kind, int layer, int index, Resource resource, double seconds,
          const std::vector<int>& after);

  const std::vector<Task>& tasks() const { return tasks_; }
  // The tasks that it waits for, beside those that its resource was given before.
  std::span<const int> after(const Task& task) const {
    return {after_.data() + task.after_begin, task.after_end - task.after_begin};
  }
  double makespan_s() const { return makespan_s_; }

 private:
  int Launch(Task task, std::span<const int> after);

  bool shared_cpu_;
  std::vector<Task> tasks_;
  std::vector<int> after_;
  std::array<double, kNumResources> free_at_s_{};
  double makespan_s_ = 0;
};

}  // namespace moesaic
