// WorkerPool: threads that run what is posted to them, first come first served. Unlike a pool of
// Asio it can be waited for with a deadline: a task that does not end must not keep a server from
// stopping.
//
// Thread contract: Post and WaitIdle from any thread. Tasks must not throw.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace moesaic {

class WorkerPool {
 public:
  using Clock = std::chrono::steady_clock;

  explicit WorkerPool(size_t threads);
  ~WorkerPool();  // Join
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(std::function<void()> task) EXCLUDES(mutex_);
  // Whether all tasks have ended; waits for it until `deadline`.
  bool WaitIdle(Clock::time_point deadline) EXCLUDES(mutex_);
  // Waits for all tasks, however long they take, and ends the threads.
  void Join() EXCLUDES(mutex_);

 private:
  void Main() EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar posted_;
  CondVar idle_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  size_t running_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace moesaic
