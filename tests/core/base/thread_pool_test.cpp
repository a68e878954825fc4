#include "core/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

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

}  // namespace
}  // namespace moesaic
