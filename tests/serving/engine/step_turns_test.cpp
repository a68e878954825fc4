// Threads that take turns.

#include "serving/engine/step_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/clock.h"

namespace moesaic {
namespace {

TEST(StepTurnsTest, OneRunsAtATimeButForThoseThatAreBlocked) {
  SteadyClock clock;
  const auto turns = std::make_shared<StepTurns>(clock);
  std::atomic<int> running{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto member = turns->Join(0);
      for (int i = 0; i < 500; ++i) {
        member->Begin();
        EXPECT_EQ(running.fetch_add(1), 0);
        running.fetch_sub(1);
        if (i % 7 == t) {
          member->Block();
          member->Resume();
        }
        member->End();
        if (i % 5 == t) member->Rest();
      }
      member->Block();  // without a turn: nothing
      member->Resume();
      EXPECT_GE(member->used_ns(), 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StepTurnsTest, ABatchWaitsUntilSomethingIsMoreUrgent) {
  SteadyClock clock;
  const auto turns = std::make_shared<StepTurns>(clock);
  const auto other = turns->Join(0);
  const auto batch = turns->Join(0);
  other->Begin();
  std::atomic<bool> urgent{false};
  std::atomic<int> asked{0};
  std::thread waiting([&] {
    const auto give_up = [&] {
      ++asked;
      return urgent.load();
    };
    EXPECT_FALSE(batch->BeginBackground(give_up).has_value());
    batch->Begin();
    batch->End();
    batch->Rest();
  });
  while (asked < 1) std::this_thread::yield();
  batch->Ask();
  while (asked < 2) std::this_thread::yield();
  urgent = true;
  batch->Ask();
  while (!other->OthersCome()) std::this_thread::yield();  // it waits again, for another step
  other->End();
  other->Rest();
  waiting.join();
  EXPECT_FALSE(batch->OthersCome());
  EXPECT_TRUE(batch->BeginBackground([] { return true; }).has_value());  // at once
  batch->End();
  batch->Rest();
}

TEST(StepTurnsTest, AMemberThatLeavesHoldsNobodyUp) {
  SteadyClock clock;
  const auto turns = std::make_shared<StepTurns>(clock);
  auto high = turns->Join(1);
  const auto low = turns->Join(0);
  high->Begin();
  std::atomic<bool> ran{false};
  std::thread waiting([&] {
    low->Begin();
    ran = true;
    low->End();
  });
  high->End();
  EXPECT_FALSE(ran);  // the next turn is kept for the one with the higher priority
  high.reset();
  waiting.join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace moesaic
