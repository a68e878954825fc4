#include "core/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "core/base/thread_limit.h"

namespace moesaic {
namespace {

TEST(ThreadPoolTest, RunsEachIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.ParallelFor(count, [&](int64_t index, int worker) {
        ASSERT_LT(worker, threads);
        seen[static_cast<size_t>(index)].fetch_add(1);
      });
      for (const auto& n : seen) EXPECT_EQ(n.load(), 1);
    }
  }
}

// In a process of its own, of a user whom the system allows one thread. Before, the threads that
// could be started ended the process with std::terminate.
TEST(ThreadPoolTest, TooManyThreadsForTheSystem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [] {
    constexpr uid_t kNobody = 65534;
    const rlimit limit{2, 2};  // this thread and one more
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) std::_Exit(1);
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(1);
    try {
      ThreadPool pool(64);
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) {
        std::fprintf(stderr, "%s", ThreadLimitAdvice("/nowhere").c_str());
        std::_Exit(0);
      }
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "may have 2 processes.*RLIMIT_NPROC");
}

TEST(ThreadPoolTest, ManyShortLoopsSeeEachOthersWrites) {
  ThreadPool pool(3);
  std::vector<int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.ParallelFor(64, [&](int64_t index, int) {
      // Reads the neighbour of the previous round's opposite half: only right if the barrier holds.
      values[static_cast<size_t>(index)] += 1;
    });
    for (const int64_t value : values) ASSERT_EQ(value, round + 1);
  }
}

TEST(ThreadPoolTest, QueuesOfNodesAreEmptiedOnceByAll) {
  for (const int nodes : {1, 2, 3}) {
    ThreadLayout layout;
    for (int node = 0; node < nodes; ++node) {
      layout.nodes.push_back(node);
      layout.places.push_back({{}, node});
    }
    for (const int threads : {1, 2, 4}) {
      ThreadPool pool(threads, layout);
      EXPECT_EQ(pool.nodes(), nodes);
      EXPECT_EQ(pool.node(threads - 1), (threads - 1) % nodes);
      // Nodes with little, with nothing and with much.
      const auto count = [](int node) { return node == 1 ? 0 : 100 * node + 3; };
      std::vector<std::atomic<int>> seen(1000);
      pool.ParallelForNodes(count, [&](int node, int64_t index, int worker) {
        ASSERT_LT(worker, threads);
        ASSERT_LT(index, count(node));
        seen[static_cast<size_t>(300 * node + index)].fetch_add(1);
      });
      for (int node = 0; node < nodes; ++node) {
        for (int64_t i = 0; i < 300; ++i) {
          EXPECT_EQ(seen[static_cast<size_t>(300 * node + i)], i < count(node) ? 1 : 0);
        }
      }
    }
  }
}

TEST(ThreadPoolTest, OwnQueueComesFirst) {
  ThreadLayout layout;
  layout.nodes = {0, 1, 2};
  layout.places = {{{}, 1}};
  ThreadPool pool(1, layout);
  std::vector<int> nodes;
  pool.ParallelForNodes([](int) { return 2; },
                        [&](int node, int64_t, int) { nodes.push_back(node); });
  EXPECT_EQ(nodes, (std::vector<int>{1, 1, 2, 2, 0, 0}));
}

TEST(ThreadPoolTest, RethrowsAndStaysUsable) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.ParallelFor(100,
                                [](int64_t index, int) {
                                  if (index == 13) throw std::runtime_error("thirteen");
                                }),
               std::runtime_error);
  std::atomic<int> n{0};
  pool.ParallelFor(10, [&](int64_t, int) { n.fetch_add(1); });
  EXPECT_EQ(n.load(), 10);
}

TEST(ThreadPoolTest, NothingBeginsBehindAFailure) {
  ThreadPool pool(2);
  std::atomic<int> begun{0};
  EXPECT_THROW(pool.ParallelFor(100,
                                [&](int64_t, int) {
                                  begun.fetch_add(1);
                                  throw std::runtime_error("each of them");
                                }),
               std::runtime_error);
  EXPECT_LE(begun.load(), 2);  // one a thread
}

}  // namespace
}  // namespace moesaic
