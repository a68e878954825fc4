// The queue of the expert operator by its own logic, without threads where that is possible: what a
// thread of a node is given, in which order, and when it has to wait.
#include "kernels/cpu/expert_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace moesaic {
namespace {

using Answer = ExpertQueue::Answer;
using Product = ExpertQueue::Product;
using Task = ExpertQueue::Task;

TEST(ProductGridTest, SlicesCoverAllPanelsInOrderAndEvenly) {
  for (int64_t panels = 0; panels <= 70; ++panels) {
    for (int nodes = 1; nodes <= 5; ++nodes) {
      int64_t next = 0;
      int64_t least = panels;
      int64_t most = 0;
      for (int node = 0; node < nodes; ++node) {
        const PanelRange slice = PanelSlice(panels, nodes, node);
        ASSERT_EQ(slice.begin, next);
        ASSERT_LE(slice.begin, slice.end);
        // Eight panels are one group of integer activations.
        ASSERT_TRUE(slice.end == panels || slice.end % 8 == 0) << panels << " over " << nodes;
        next = slice.end;
        least = std::min(least, slice.end - slice.begin);
        most = std::max(most, slice.end - slice.begin);
      }
      ASSERT_EQ(next, panels);
      ASSERT_LE(most - least, nodes == 1 ? 0 : 15) << panels << " over " << nodes;
    }
  }
}

TEST(ProductGridTest, TasksOfNodesCoverTheProductOnce) {
  for (const int64_t rows : {1, 5, 200, 700}) {
    for (const int64_t panels : {1, 2, 3, 31, 48}) {
      for (const int nodes : {1, 2, 3}) {
        for (const int64_t unit : {1, 8}) {
          const ProductGrid grid = MakeProductGrid(rows, panels, 64, 64 * 1024, unit, nodes);
          std::vector<int> seen(static_cast<size_t>(rows * panels));
          int64_t tasks = 0;
          for (int node = 0; node < nodes; ++node) {
            const PanelRange slice = PanelSlice(panels, nodes, node);
            for (int64_t task = 0; task < grid.tasks(node); ++task, ++tasks) {
              const ProductGrid::Share share = grid.ShareOf(node, task);
              EXPECT_EQ(share.panel_begin % unit, 0);
              EXPECT_GE(share.panel_begin, slice.begin);
              EXPECT_LE(share.panel_end, slice.end);
              for (int64_t r = share.row_begin; r < share.row_begin + share.rows; ++r) {
                for (int64_t p = share.panel_begin; p < share.panel_end; ++p) {
                  ++seen[static_cast<size_t>(r * panels + p)];
                }
              }
            }
          }
          EXPECT_EQ(tasks, grid.tasks());
          EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }))
              << rows << " x " << panels << " on " << nodes;
        }
      }
    }
  }
}

// Experts of one row; a task is a panel.
struct Experts {
  Experts(std::vector<int64_t> panels, int nodes)
      : tasks(std::make_unique<ExpertTasks[]>(panels.size())), count(panels.size()) {
    for (size_t e = 0; e < count; ++e) {
      tasks[e].gate_up = MakeProductGrid(1, panels[e], 64, 1, 1, nodes);
      tasks[e].down = MakeProductGrid(1, panels[e], 64, 1, 1, nodes);
    }
  }
  std::span<ExpertTasks> span() { return {tasks.get(), count}; }
  std::unique_ptr<ExpertTasks[]> tasks;
  size_t count;
};

TEST(ExpertQueueTest, DownFollowsItsExpertAndNotAllOfThem) {
  Experts experts({2, 2, 2}, 1);
  ExpertQueue queue(experts.span(), 1);
  std::vector<Task> begun(6);
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(queue.Take(0, begun[static_cast<size_t>(i)]), Answer::kTask);
    EXPECT_EQ(begun[static_cast<size_t>(i)].product, Product::kGateUp);
    EXPECT_EQ(begun[static_cast<size_t>(i)].expert, i / 2);
  }
  Task task;
  EXPECT_EQ(queue.Take(0, task), Answer::kWait);
  queue.Finish(begun[2]);
  EXPECT_EQ(queue.Take(0, task), Answer::kWait);
  // The second expert is done first, and the third next: in that order they are handed out.
  queue.Finish(begun[3]);
  queue.Finish(begun[5]);
  queue.Finish(begun[4]);
  for (const int expert : {1, 1, 2, 2}) {
    ASSERT_EQ(queue.Take(0, task), Answer::kTask);
    EXPECT_EQ(task.product, Product::kDown);
    EXPECT_EQ(task.expert, expert);
    queue.Finish(task);
  }
  EXPECT_EQ(queue.Take(0, task), Answer::kWait);
  queue.Finish(begun[0]);
  queue.Finish(begun[1]);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(queue.Take(0, task), Answer::kTask);
    EXPECT_EQ(task.expert, 0);
  }
  EXPECT_EQ(queue.Take(0, task), Answer::kEnd);
}

TEST(ExpertQueueTest, ThreadsTakeTheirOwnNodesTasksWhileThereAreAny) {
  for (const int nodes : {2, 3}) {
    // Of 6 panels (a unit is two) every node has two at least; the last expert has one panel: its
    // only slice is the last node's, and the other nodes have none.
    Experts experts({6, 9, 6, 1}, nodes);
    ExpertQueue queue(experts.span(), nodes);
    std::vector<int64_t> left(static_cast<size_t>(nodes));
    for (int node = 0; node < nodes; ++node) {
      for (size_t e = 0; e < experts.count; ++e) {
        left[static_cast<size_t>(node)] += experts.tasks[e].gate_up.tasks(node);
      }
    }
    // All nodes at the same pace: nobody takes what is another's.
    std::vector<Task> begun;
    const int64_t turns = *std::min_element(left.begin(), left.end());
    for (int64_t turn = 0; turn < turns; ++turn) {
      for (int node = 0; node < nodes; ++node) {
        Task& task = begun.emplace_back();
        ASSERT_EQ(queue.Take(node, task), Answer::kTask);
        EXPECT_EQ(task.node, node);
        EXPECT_EQ(task.product, Product::kGateUp);
        --left[static_cast<size_t>(node)];
      }
    }
    for (const Task& task : begun) queue.Finish(task);
    // What gate and up have left is taken by one node, which is not idle for that: its own down
    // first, where it may run, then the others' gate and up, then all the rest.
    bool helped = false;
    Task task;
    for (Answer answer; (answer = queue.Take(0, task)) != Answer::kEnd;) {
      ASSERT_EQ(answer, Answer::kTask);
      helped |= task.node != 0;
      if (task.node == 0 && helped) {
        // Only of an expert that has become ready meanwhile.
        EXPECT_EQ(task.product, Product::kDown);
      }
      queue.Finish(task);
    }
    EXPECT_TRUE(helped);
  }
}

TEST(ExpertQueueTest, EveryTaskOnceOnAnyThreads) {
  for (const int nodes : {1, 2, 3}) {
    for (int round = 0; round < 50; ++round) {
      Experts experts({5, 1, 12, 3, 2, 7, 4, 33}, nodes);
      ExpertQueue queue(experts.span(), nodes);
      std::vector<std::atomic<int>> gate_up(8 * 64), down(8 * 64);
      std::atomic<bool> early{false};
      std::vector<std::thread> threads;
      threads.reserve(4);
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          queue.Work(t % nodes, [&](const Task& task) {
            const auto e = static_cast<size_t>(task.expert);
            const ExpertTasks& of = experts.tasks[e];
            const bool first = task.product == Product::kGateUp;
            const auto share = (first ? of.gate_up : of.down).ShareOf(task.node, task.index);
            for (int64_t p = share.panel_begin; p < share.panel_end; ++p) {
              ++(first ? gate_up : down)[e * 64 + static_cast<size_t>(p)];
            }
            for (int64_t p = 0; !first && p < of.gate_up.panels; ++p) {
              if (gate_up[e * 64 + static_cast<size_t>(p)] != 1) early = true;
            }
          });
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_FALSE(early);
      for (size_t e = 0; e < experts.count; ++e) {
        for (size_t p = 0; p < 64; ++p) {
          const int times = static_cast<int64_t>(p) < experts.tasks[e].down.panels ? 1 : 0;
          ASSERT_EQ(gate_up[e * 64 + p], times);
          ASSERT_EQ(down[e * 64 + p], times);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
