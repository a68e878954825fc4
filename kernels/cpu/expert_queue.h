// ExpertQueue: which thread does what in one call of the expert operator. A queue of tasks for each
// NUMA node: first gate and up of all experts, then down. There is no barrier between the two: down
// of an expert may run as soon as gate and up of that expert are done on all nodes, and experts are
// handed out in the order in which that happens.
//
// A thread takes from its own node's queue what may run; while there is nothing of that, from the
// other nodes' queues; and it waits only when all that is left waits for tasks that other threads
// have begun.
//
// Thread contract: Take, Finish and Work from any thread, once the object is made. It allocates
// nothing; the caller owns the experts' state and keeps it until all threads are done.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "core/base/spin_wait.h"
#include "core/base/thread_layout.h"
#include "kernels/cpu/product_grid.h"

namespace moesaic {

// The products of one expert, and how far they are.
struct ExpertTasks {
  ProductGrid gate_up;
  ProductGrid down;
  std::atomic<int64_t> unfinished{0};  // tasks of gate and up
  // Of the element i of the queue's experts: the expert whose gate and up were done as the i-th;
  // -1: not yet.
  std::atomic<int32_t> done_expert{-1};
};

class ExpertQueue {
 public:
  enum class Product : uint8_t { kGateUp, kDown };
  struct Task {
    Product product = Product::kGateUp;
    int32_t expert = 0;
    int node = 0;       // whose slice it is
    int64_t index = 0;  // for ShareOf of the expert's grid
  };
  enum class Answer { kTask, kWait, kEnd };

  // Both grids of every expert are of `nodes` nodes and have tasks (CHECKed).
  ExpertQueue(std::span<ExpertTasks> experts, int nodes);

  // For a thread of `node`. kWait: nothing may run until another task is finished.
  Answer Take(int node, Task& task);
  void Finish(const Task& task);

  // Runs tasks until none is left: a worker's part of the call.
  template <typename Body>
  void Work(int node, Body&& body) {
    for (;;) {
      const uint32_t done = done_experts_.load(std::memory_order_acquire);
      Task task;
      switch (Take(node, task)) {
        case Answer::kTask:
          body(task);
          Finish(task);
          break;
        case Answer::kWait:
          SpinThenWait(done_experts_, done);
          break;
        case Answer::kEnd:
          return;
      }
    }
  }

 private:
  // The next task of a queue: the place of its expert (upper half) and its index.
  struct alignas(64) Node {
    std::atomic<uint64_t> gate_up{0};
    std::atomic<uint64_t> down{0};
  };

  Answer TakeFrom(int node, Product product, Task& task);

  const std::span<ExpertTasks> experts_;
  const int nodes_;
  std::array<Node, kMaxComputeNodes> queues_;
  alignas(64) std::atomic<uint32_t> next_place_{0};  // in the order of done experts
  std::atomic<uint32_t> done_experts_{0};            // what waiting threads wait on
};

}  // namespace moesaic
