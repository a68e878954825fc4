#include "core/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <array>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/spin_wait.h"

namespace moesaic {
namespace {

void KeepOn(pthread_t thread, const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  // Best effort: a cgroup may forbid the CPUs; then the kernel places the thread.
  pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

ThreadPool::ThreadPool(int threads, ThreadLayout layout) : layout_(std::move(layout)) {
  CHECK_GE(threads, 1);
  CHECK_LE(nodes(), kMaxComputeNodes);
  for (const ThreadPlace& place : layout_.places) {
    CHECK_GE(place.node, 0);
    CHECK_LT(place.node, nodes());
  }
  for (int worker = 1; worker < threads; ++worker) {
    try {
      workers_.emplace_back([this, worker] { WorkerLoop(worker); });
    } catch (...) {  // the system makes no more: nobody else joins those that are there
      StopWorkers();
      throw;
    }
    pthread_setname_np(workers_.back().native_handle(),
                       ("compute-" + std::to_string(worker)).c_str());
    if (!layout_.places.empty()) KeepOn(workers_.back().native_handle(), PlaceOf(worker).cpus);
  }
  if (!layout_.places.empty()) KeepOn(pthread_self(), PlaceOf(0).cpus);
}

ThreadPool::~ThreadPool() { StopWorkers(); }

void ThreadPool::StopWorkers() {
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
      PauseSpin();
    } else {
      unfinished_.wait(unfinished, std::memory_order_acquire);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadPool::ParallelForNodes(FunctionRef<int64_t(int)> count,
                                  FunctionRef<void(int, int64_t, int)> body) {
  struct alignas(64) Queue {
    std::atomic<int64_t> next{0};
    int64_t count = 0;
  };
  std::array<Queue, kMaxComputeNodes> queues;
  int64_t total = 0;
  for (int node = 0; node < nodes(); ++node) {
    Queue& queue = queues[static_cast<size_t>(node)];
    queue.count = count(node);
    total += queue.count;
  }
  ParallelFor(std::min<int64_t>(total, threads()), [&](int64_t, int worker) {
    for (int i = 0; i < nodes(); ++i) {
      const int from = (node(worker) + i) % nodes();
      Queue& queue = queues[static_cast<size_t>(from)];
      for (;;) {
        const int64_t index = queue.next.fetch_add(1, std::memory_order_relaxed);
        if (index >= queue.count) break;
        body(from, index, worker);
      }
    }
  });
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
    seen = SpinThenWait(loop_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    RunShare(worker);
  }
}

}  // namespace moesaic
