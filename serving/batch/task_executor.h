// TaskExecutor: runs the tasks of a TaskGraph for real: each lane its own one at a time, in the
// order in which they were launched, each when what it waits for has ended. A lane serves one or
// several resources; lane 0 is the thread that calls Run, the others are threads of the executor.
//
// Launch order makes it free of deadlocks: the first task that has not ended waits for nothing and
// is its lane's next one.
//
// Thread contract: one thread calls Run. Bodies run on the lanes' threads; what one wrote is
// visible to those that wait for it.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "core/base/function_ref.h"
#include "core/base/mutex.h"
#include "core/perf/layer_graph.h"

namespace moesaic {

class TaskExecutor {
 public:
  // [resources] the lane of each; numbered from 0 without gaps.
  explicit TaskExecutor(const std::array<int, kNumResources>& lane_of);
  ~TaskExecutor();
  TaskExecutor(const TaskExecutor&) = delete;
  TaskExecutor& operator=(const TaskExecutor&) = delete;

  int lanes() const { return static_cast<int>(threads_.size()) + 1; }

  // Returns when every task has ended. After one that throws, those that have not begun are left
  // out; the first exception is thrown on.
  void Run(const TaskGraph& graph, FunctionRef<void(const Task& task)> body) EXCLUDES(mutex_);

 private:
  void StopThreads();
  void LaneThread(int lane) EXCLUDES(mutex_);
  void RunLane(int lane) EXCLUDES(mutex_);
  void RunAlone(const TaskGraph& graph, FunctionRef<void(const Task& task)> body);
  bool AwaitTurn(const Task& task) EXCLUDES(mutex_);
  int LaneOf(const Task& task) const { return lane_of_[static_cast<size_t>(task.resource)]; }

  const std::array<int, kNumResources> lane_of_;
  // Of the run; changed while no lane is in one.
  const TaskGraph* graph_ = nullptr;
  const FunctionRef<void(const Task& task)>* body_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  std::vector<uint8_t> ended_ GUARDED_BY(mutex_);  // [tasks]
  uint64_t run_ GUARDED_BY(mutex_) = 0;            // its number
  int lanes_running_ GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;  // of lanes 1, 2, ...
};

}  // namespace moesaic
