#include "core/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <string>
#include <utility>

#include "core/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moesaic {
namespace {

// About 20 us on a 4 GHz core (bench_thread_pool): longer than the gap between two loops of a
// decode step, much shorter than a scheduler's time slice.
constexpr int kSpins = 1000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void PinTo(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Best effort: a cgroup may forbid the CPU; then the kernel places the thread.
  pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::vector<int> cpus) {
  CHECK_GE(threads, 1);
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
    pthread_setname_np(workers_.back().native_handle(),
                       ("compute-" + std::to_string(worker)).c_str());
    if (!cpus.empty()) PinTo(workers_.back().native_handle(), cpus[worker % cpus.size()]);
  }
  if (!cpus.empty()) PinTo(pthread_self(), cpus[0]);
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  running_.store(static_cast<int32_t>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunShare(0);
  for (int spin = 0;; ++spin) {
    const int32_t running = running_.load(std::memory_order_acquire);
    if (running == 0) break;
    if (spin < kSpins) {
      Pause();
    } else {
      running_.wait(running, std::memory_order_acquire);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::RunShare(int worker) {
  try {
    for (;;) {
      const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) return;
      (*body_)(index, worker);
    }
  } catch (...) {
    next_.store(count_, std::memory_order_relaxed);  // the others stop after their current index
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    for (int spin = 0; generation_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShare(worker);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace moesaic
