#include "serving/http/worker_pool.h"

#include <utility>

namespace moesaic {

WorkerPool::WorkerPool(size_t threads) {
  try {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Main(); });
  } catch (...) {  // no more threads: those that are there must not outlive this
    Join();
    throw;
  }
}

WorkerPool::~WorkerPool() { Join(); }

void WorkerPool::Join() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    posted_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  posted_.NotifyAll();
}

bool WorkerPool::WaitIdle(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (running_ > 0 || !tasks_.empty()) {
    if (Clock::now() >= deadline) return false;
    idle_.WaitUntil(mutex_, deadline);
  }
  return true;
}

void WorkerPool::Main() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stop_) posted_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    task();
    task = nullptr;  // what it holds goes before it counts as ended
    MutexLock lock(mutex_);
    if (--running_ == 0 && tasks_.empty()) idle_.NotifyAll();
  }
}

}  // namespace moesaic
