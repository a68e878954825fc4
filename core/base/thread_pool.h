// ThreadPool: a fixed set of worker threads that run index ranges together with the calling thread.
//
// Thread contract: one thread (the owner) calls ParallelFor; calls do not nest. Workers spin for a
// bounded time after a loop and then sleep, and a loop waits only for indices that were begun,
// never for a worker to show up: a busy neighbour on a worker's core costs that worker's help and
// not a time slice of the scheduler for each loop (docs/benchmarks.md, "A busy neighbour").
//
// On a machine whose weights are sliced over NUMA nodes a worker belongs to one of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include "core/base/function_ref.h"
#include "core/base/thread_layout.h"

namespace moesaic {

class ThreadPool {
 public:
  // `threads` counts the calling thread: 1 means that everything runs on the caller. Worker i (the
  // owner is worker 0) is kept where the layout says.
  explicit ThreadPool(int threads, ThreadLayout layout = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Nodes that weights are sliced over, at least one, and the worker's: [0, nodes()).
  int nodes() const { return std::max(1, static_cast<int>(layout_.nodes.size())); }
  int node(int worker) const { return layout_.places.empty() ? 0 : PlaceOf(worker).node; }
  // The machine's numbers of the nodes; empty or one: nothing is sliced.
  std::span<const int> node_ids() const { return layout_.nodes; }

  // Runs body(index, worker) for index in [0, count), each once, handed out in order to whichever
  // worker is free (worker in [0, threads())). Returns when all are done; rethrows the first
  // exception. Memory written by the bodies is visible to the caller afterwards. Does not allocate.
  void ParallelFor(int64_t count, FunctionRef<void(int64_t index, int worker)> body);

  // The same with a queue for each node: index in [0, count(node)) of every node. A worker takes
  // from its own node's queue as long as that has any, and then from the others'.
  void ParallelForNodes(FunctionRef<int64_t(int node)> count,
                        FunctionRef<void(int node, int64_t index, int worker)> body);

 private:
  const ThreadPlace& PlaceOf(int worker) const {
    return layout_.places[static_cast<size_t>(worker) % layout_.places.size()];
  }
  void WorkerLoop(int worker);
  void StopWorkers();
  void RunShare(int worker);

  const ThreadLayout layout_;
  std::vector<std::thread> workers_;
  // A loop's fields are written while nothing of it can be claimed, and read by who has claimed an
  // index of it.
  const FunctionRef<void(int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  // The loop's number (upper half) and how many of its indices nobody has claimed yet: a worker
  // that comes too late finds another number or nothing to claim.
  alignas(64) std::atomic<uint64_t> claims_{0};
  alignas(64) std::atomic<uint32_t> loop_{0};  // what sleeping workers wait on
  alignas(64) std::atomic<int64_t> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

}  // namespace moesaic
