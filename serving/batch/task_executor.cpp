#include "serving/batch/task_executor.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

TaskExecutor::TaskExecutor(const std::array<int, kNumResources>& lane_of) : lane_of_(lane_of) {
  const int lanes = *std::max_element(lane_of_.begin(), lane_of_.end()) + 1;
  for (int lane = 1; lane < lanes; ++lane) {
    try {
      threads_.emplace_back([this, lane] { LaneThread(lane); });
    } catch (...) {  // the system makes no more: nobody else joins those that are there
      StopThreads();
      throw;
    }
    pthread_setname_np(threads_.back().native_handle(), ("lane-" + std::to_string(lane)).c_str());
  }
}

TaskExecutor::~TaskExecutor() { StopThreads(); }

void TaskExecutor::StopThreads() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TaskExecutor::Run(const TaskGraph& graph, FunctionRef<void(const Task& task)> body) {
  if (threads_.empty()) {
    RunAlone(graph, body);
    return;
  }
  {
    const MutexLock lock(mutex_);
    graph_ = &graph;
    body_ = &body;
    ended_.assign(graph.tasks().size(), 0);
    lanes_running_ = lanes();
    ++run_;
    changed_.NotifyAll();
  }
  RunLane(0);
  std::exception_ptr error;
  {
    const MutexLock lock(mutex_);
    while (lanes_running_ > 0) changed_.Wait(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

// One lane: what a task waits for was launched, and so has ended, before it.
void TaskExecutor::RunAlone(const TaskGraph& graph, FunctionRef<void(const Task& task)> body) {
  for (const Task& task : graph.tasks()) {
    for (const int before : graph.after(task)) {
      CHECK_LT(before, &task - graph.tasks().data());
    }
    body(task);
  }
}

void TaskExecutor::LaneThread(int lane) {
  for (uint64_t seen = 0;;) {
    {
      const MutexLock lock(mutex_);
      while (!stop_ && run_ == seen) changed_.Wait(mutex_);
      if (stop_) return;
      seen = run_;
    }
    RunLane(lane);
  }
}

void TaskExecutor::RunLane(int lane) {
  const std::vector<Task>& tasks = graph_->tasks();
  for (size_t at = 0; at < tasks.size(); ++at) {
    const Task& task = tasks[at];
    if (LaneOf(task) != lane) continue;
    if (!AwaitTurn(task)) break;
    try {
      (*body_)(task);
    } catch (...) {
      const MutexLock lock(mutex_);
      if (!error_) error_ = std::current_exception();
      changed_.NotifyAll();
      break;
    }
    const MutexLock lock(mutex_);
    ended_[at] = 1;
    changed_.NotifyAll();
  }
  const MutexLock lock(mutex_);
  --lanes_running_;
  changed_.NotifyAll();
}

// False: some task has failed.
bool TaskExecutor::AwaitTurn(const Task& task) {
  const MutexLock lock(mutex_);
  for (const int before : graph_->after(task)) {
    while (ended_[static_cast<size_t>(before)] == 0 && !error_) changed_.Wait(mutex_);
  }
  return !error_;
}

}  // namespace moesaic
