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
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  CHECK_LE(count, int64_t{UINT32_MAX});
  body_ = &body;
  count_ = count;
  unfinished_.store(count, std::memory_order_relaxed);
  const uint32_t loop = loop_.load(std::memory_order_relaxed) + 1;
  claims_.store(uint64_t{loop} << 32 | static_cast<uint64_t>(count), std::memory_order_release);
  loop_.store(loop, std::memory_order_release);
  loop_.notify_all();
  RunShare(0);
  for (int spin = 0;; ++spin) {
    const int64_t unfinished = unfinished_.load(std::memory_order_acquire);
    if (unfinished == 0) break;
    if (spin < kSpins) {
      Pause();
    } else {
      unfinished_.wait(unfinished, std::memory_order_acquire);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::RunShare(int worker) {
  int64_t finished = 0;
  uint64_t claims = claims_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(claims) != 0) {
    if (!claims_.compare_exchange_weak(claims, claims - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // After a failure the rest is claimed and not run.
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        (*body_)(count_ - static_cast<uint32_t>(claims), worker);
      } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
      }
    }
    ++finished;
    claims = claims_.load(std::memory_order_acquire);
  }
  if (finished > 0 && unfinished_.fetch_sub(finished, std::memory_order_acq_rel) == finished &&
      worker != 0) {
    unfinished_.notify_one();
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t loop = loop_.load(std::memory_order_acquire);
    for (int spin = 0; loop == seen; ++spin, loop = loop_.load(std::memory_order_acquire)) {
      if (spin < kSpins) {
        Pause();
      } else {
        loop_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = loop;
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShare(worker);
  }
}

}  // namespace moesaic
