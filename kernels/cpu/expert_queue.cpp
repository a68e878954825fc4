#include "kernels/cpu/expert_queue.h"

#include "core/base/check.h"

namespace moesaic {

ExpertQueue::ExpertQueue(std::span<ExpertTasks> experts, int nodes)
    : experts_(experts), nodes_(nodes) {
  CHECK_GE(nodes, 1);
  CHECK_LE(nodes, kMaxComputeNodes);
  for (ExpertTasks& expert : experts) {
    CHECK_EQ(expert.gate_up.nodes, nodes);
    CHECK_EQ(expert.down.nodes, nodes);
    const int64_t tasks = expert.gate_up.tasks();
    CHECK_GT(tasks, 0);  // else nobody would ever say that they are done
    expert.unfinished.store(tasks, std::memory_order_relaxed);
    expert.done_expert.store(-1, std::memory_order_relaxed);
  }
}

ExpertQueue::Answer ExpertQueue::Take(int node, Task& task) {
  bool waits = false;
  for (int i = 0; i < nodes_; ++i) {
    const int from = (node + i) % nodes_;
    if (TakeFrom(from, Product::kGateUp, task) == Answer::kTask) return Answer::kTask;
    const Answer down = TakeFrom(from, Product::kDown, task);
    if (down == Answer::kTask) return Answer::kTask;
    waits |= down == Answer::kWait;
  }
  return waits ? Answer::kWait : Answer::kEnd;
}

ExpertQueue::Answer ExpertQueue::TakeFrom(int node, Product product, Task& task) {
  Node& queue = queues_[static_cast<size_t>(node)];
  std::atomic<uint64_t>& next = product == Product::kGateUp ? queue.gate_up : queue.down;
  uint64_t at = next.load(std::memory_order_relaxed);
  for (;;) {
    const auto place = static_cast<size_t>(at >> 32);
    const auto index = static_cast<uint32_t>(at);
    if (place == experts_.size()) return Answer::kEnd;
    auto expert = static_cast<int32_t>(place);
    if (product == Product::kDown) {
      // What gate and up have written is there for whoever reads this.
      expert = experts_[place].done_expert.load(std::memory_order_acquire);
      if (expert < 0) return Answer::kWait;
    }
    const ExpertTasks& tasks = experts_[static_cast<size_t>(expert)];
    const int64_t count =
        product == Product::kGateUp ? tasks.gate_up.tasks(node) : tasks.down.tasks(node);
    const uint64_t after =
        int64_t{index} + 1 < count ? at + 1 : static_cast<uint64_t>(place + 1) << 32;
    if (!next.compare_exchange_weak(at, after, std::memory_order_relaxed)) continue;
    if (index < count) {
      task = {product, expert, node, index};
      return Answer::kTask;
    }
    at = after;  // the node has no slice of this expert
  }
}

void ExpertQueue::Finish(const Task& task) {
  if (task.product == Product::kDown) return;
  ExpertTasks& expert = experts_[static_cast<size_t>(task.expert)];
  if (expert.unfinished.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const uint32_t place = next_place_.fetch_add(1, std::memory_order_relaxed);
  experts_[place].done_expert.store(task.expert, std::memory_order_release);
  done_experts_.fetch_add(1, std::memory_order_release);
  done_experts_.notify_all();
}

}  // namespace moesaic
