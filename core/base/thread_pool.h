// ThreadPool: a fixed set of worker threads that run index ranges together with the calling thread.
//
// Thread contract: one thread (the owner) calls ParallelFor; calls do not nest. Workers spin for a
// bounded time after a loop and then sleep, so that a busy neighbour on the same core costs a
// wake-up and not a collapse (measured: bench_thread_pool).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "core/base/function_ref.h"

namespace moesaic {

class ThreadPool {
 public:
  // `threads` counts the calling thread: 1 means that everything runs on the caller. `cpus`, when
  // not empty, pins worker i (and the owner, as worker 0) to cpus[i % cpus.size()].
  explicit ThreadPool(int threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(index, worker) for index in [0, count), each once, handed out in order to whichever
  // worker is free (worker in [0, threads())). Returns when all are done; rethrows the first
  // exception. Memory written by the bodies is visible to the caller afterwards. Does not allocate.
  void ParallelFor(int64_t count, FunctionRef<void(int64_t index, int worker)> body);

 private:
  void WorkerLoop(int worker);
  void RunShare(int worker);

  std::vector<std::thread> workers_;
  // A loop is published by writing its fields and then bumping generation_.
  const FunctionRef<void(int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int32_t> running_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

}  // namespace moesaic
