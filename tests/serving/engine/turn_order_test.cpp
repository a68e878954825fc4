// Whose turn it is, on a virtual clock.

#include "serving/engine/turn_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace moesaic {
namespace {

constexpr int64_t kMs = 1'000'000;

// Engines whose steps take what `step_ns` says, on a clock that stands still between them.
class Engines {
 public:
  int Add(std::function<int64_t()> step_ns, int priority = 0) {
    steps_.push_back(std::move(step_ns));
    gap_.push_back(0);
    return order_.Join(priority);
  }
  void Wait(int member) { order_.Wait(member); }

  // Runs a step of whoever is next; -1: nobody.
  int Step() {
    const std::optional<int> next = order_.Next(now_ns_);
    if (!next) return -1;
    const int64_t took = steps_[static_cast<size_t>(*next)]();
    for (int m = 0; m < static_cast<int>(steps_.size()); ++m) {
      if (m != *next) gap_[static_cast<size_t>(m)] += took;
      longest_gap_ = std::max(longest_gap_, gap_[static_cast<size_t>(m)]);
    }
    gap_[static_cast<size_t>(*next)] = 0;
    now_ns_ += took;
    order_.End(*next, now_ns_);
    return *next;
  }
  double Share(int member) const {
    int64_t all = 0;
    for (int m = 0; m < static_cast<int>(steps_.size()); ++m) all += order_.used_ns(m);
    return static_cast<double>(order_.used_ns(member)) / static_cast<double>(all);
  }

  TurnOrder order_;
  int64_t now_ns_ = 0;
  int64_t longest_gap_ = 0;  // in which somebody did not run

 private:
  std::vector<std::function<int64_t()>> steps_;
  std::vector<int64_t> gap_;
};

TEST(TurnOrderTest, AloneItNeverWaits) {
  Engines engines;
  const int one = engines.Add([] { return 700 * kMs; });
  for (int i = 0; i < 100; ++i) {
    engines.Wait(one);
    ASSERT_EQ(engines.Step(), one);
    if (i % 3 == 0) engines.order_.Rest(one);
  }
}

TEST(TurnOrderTest, EqualLoadGetsEqualTimeWhateverAStepTakes) {
  std::mt19937_64 random(11);
  Engines engines;
  const int members[] = {engines.Add([] { return 50 * kMs; }), engines.Add([] { return 3 * kMs; }),
                         engines.Add([&random]() -> int64_t {
                           return static_cast<int64_t>(1 + random() % 20) * kMs / 2;
                         })};
  for (const int member : members) engines.Wait(member);
  for (int i = 0; i < 20'000; ++i) {
    const int ran = engines.Step();
    ASSERT_GE(ran, 0);
    engines.Wait(ran);
  }
  for (const int member : members) EXPECT_NEAR(engines.Share(member), 1.0 / 3, 0.01);
  // What the others run meanwhile makes up for the longest step, and one step more each.
  EXPECT_LE(engines.longest_gap_, 2 * 50 * kMs + (50 + 3 + 10) * kMs);
}

TEST(TurnOrderTest, EqualStepsAlternate) {
  Engines engines;
  const int a = engines.Add([] { return 10 * kMs; });
  const int b = engines.Add([] { return 10 * kMs; });
  engines.Wait(a);
  engines.Wait(b);
  std::vector<int> ran;
  for (int i = 0; i < 8; ++i) {
    ran.push_back(engines.Step());
    engines.Wait(ran.back());
  }
  for (size_t i = 1; i < ran.size(); ++i) EXPECT_NE(ran[i], ran[i - 1]) << i;
}

TEST(TurnOrderTest, WhoComesBackAtOnceIsNotPassedOver) {
  // b is cheap and would run many times in a row; between two of its steps it is not waiting.
  Engines engines;
  const int a = engines.Add([] { return 100 * kMs; });
  const int b = engines.Add([] { return 1 * kMs; });
  engines.Wait(a);
  engines.Wait(b);
  for (int i = 0; i < 5000; ++i) {
    int ran = engines.Step();
    if (ran < 0) {  // kept for the one between two steps
      engines.Wait(b);
      ran = engines.Step();
      ASSERT_EQ(ran, b);
    }
    if (ran == a) engines.Wait(a);
  }
  EXPECT_NEAR(engines.Share(a), 0.5, 0.02);
}

// Half a quantum that is left is enough: nobody gets a new one before it is used up.
TEST(TurnOrderTest, ATurnIsKeptForWhoHasCreditLeft) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(0);
  order.Wait(a);
  order.Wait(b);
  ASSERT_EQ(order.Next(0), b);
  order.End(b, kMs / 2);
  ASSERT_EQ(order.Next(kMs / 2), a);
  order.End(a, 2 * kMs);
  order.Wait(a);
  EXPECT_FALSE(order.Next(2 * kMs).has_value());
  order.Wait(b);
  EXPECT_EQ(order.Next(2 * kMs), b);
}

TEST(TurnOrderTest, WhoRestsIsNotWaitedForAndSavesNothing) {
  Engines engines;
  const int a = engines.Add([] { return 5 * kMs; });
  const int b = engines.Add([] { return 5 * kMs; });
  engines.Wait(b);
  ASSERT_EQ(engines.Step(), b);
  engines.order_.Rest(b);
  for (int i = 0; i < 100; ++i) {
    engines.Wait(a);
    ASSERT_EQ(engines.Step(), a);
  }
  // It comes back: they alternate, it has no 100 steps to catch up on.
  engines.Wait(a);
  engines.Wait(b);
  int of_b = 0;
  for (int i = 0; i < 20; ++i) {
    const int ran = engines.Step();
    of_b += ran == b ? 1 : 0;
    engines.Wait(ran);
  }
  EXPECT_GE(of_b, 9);
  EXPECT_LE(of_b, 11);
}

TEST(TurnOrderTest, ADebtIsWorkedOffWhileItsOwnerRests) {
  Engines engines;
  const int a = engines.Add([] { return 1 * kMs; });
  const int b = engines.Add([] { return 500 * kMs; });
  engines.Wait(a);
  engines.Wait(b);
  while (engines.Step() != b) engines.Wait(a);
  engines.order_.Rest(b);
  for (int i = 0; i < 600; ++i) {
    ASSERT_EQ(engines.Step(), a);
    engines.Wait(a);
  }
  engines.Wait(b);
  int before = 0;
  for (int ran = engines.Step(); ran != b; ran = engines.Step(), ++before) engines.Wait(ran);
  EXPECT_LE(before, 2);
}

TEST(TurnOrderTest, HigherPrioritiesAreStrict) {
  Engines engines;
  const int low = engines.Add([] { return 2 * kMs; });
  const int high = engines.Add([] { return 30 * kMs; }, 1);
  const int behind = engines.Add([] { return 2 * kMs; });  // low as well
  engines.Wait(low);
  engines.Wait(high);
  engines.Wait(behind);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(engines.Step(), high);
    ASSERT_EQ(engines.Step(), -1);  // kept for it
    engines.Wait(high);
  }
  ASSERT_EQ(engines.Step(), high);
  engines.order_.Rest(high);
  EXPECT_EQ(engines.Step(), behind);
  EXPECT_EQ(engines.Step(), low);
}

TEST(TurnOrderTest, WhoIsBlockedLetsOthersRunAndIsNotCharged) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(0);
  order.Wait(a);
  ASSERT_EQ(order.Next(0), a);
  order.Wait(b);
  EXPECT_FALSE(order.Next(1 * kMs).has_value());
  order.Block(a, 2 * kMs);
  ASSERT_EQ(order.Next(2 * kMs), b);
  order.Resume(a, 9 * kMs);  // beside b
  order.Block(a, 10 * kMs);
  EXPECT_FALSE(order.Next(10 * kMs).has_value());
  order.Resume(a, 11 * kMs);
  order.End(b, 12 * kMs);
  order.Wait(b);
  EXPECT_FALSE(order.Next(12 * kMs).has_value());
  order.End(a, 13 * kMs);
  EXPECT_EQ(order.used_ns(a), 5 * kMs);
  EXPECT_EQ(order.used_ns(b), 10 * kMs);
  order.Wait(a);
  EXPECT_EQ(order.Next(13 * kMs), a);  // which has had less
}

TEST(TurnOrderTest, BatchesComeBehindAllOthers) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(5);
  order.Wait(b, true);
  EXPECT_FALSE(order.OthersCome(a));
  order.Wait(a);
  EXPECT_TRUE(order.OthersCome(b));
  ASSERT_EQ(order.Next(0), a);
  EXPECT_TRUE(order.OthersCome(b));
  // Nor is one begun beside a step that waits for experts, or between two.
  order.Block(a, 1 * kMs);
  EXPECT_FALSE(order.Next(1 * kMs).has_value());
  EXPECT_TRUE(order.OthersCome(b));
  order.Resume(a, 2 * kMs);
  order.End(a, 3 * kMs);
  EXPECT_FALSE(order.Next(3 * kMs).has_value());
  order.Rest(a);
  EXPECT_FALSE(order.OthersCome(b));
  ASSERT_EQ(order.Next(3 * kMs), b);
  order.Block(b, 4 * kMs);
  order.Wait(a);
  EXPECT_EQ(order.Next(4 * kMs), a);
  order.End(a, 5 * kMs);
  order.Rest(a);
  order.Resume(b, 6 * kMs);
  order.End(b, 7 * kMs);
  // What it wants beside is in its own right.
  order.Wait(a);
  order.Wait(b);
  EXPECT_EQ(order.Next(7 * kMs), b);
}

TEST(TurnOrderTest, WhatABatchTookIsNoDebt) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(0);
  order.Wait(b, true);
  ASSERT_EQ(order.Next(0), b);
  order.End(b, 500 * kMs);
  order.Wait(b);
  order.Wait(a);
  ASSERT_EQ(order.Next(500 * kMs), a);
  order.End(a, 510 * kMs);
  order.Wait(a);
  EXPECT_EQ(order.Next(510 * kMs), b);
  EXPECT_EQ(order.used_ns(b), 500 * kMs);
}

TEST(TurnOrderTest, BatchesOfSeveralGetEqualTime) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(3);
  order.Wait(a, true);
  order.Wait(b, true);
  int64_t now_ns = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto next = order.Next(now_ns);
    ASSERT_TRUE(next.has_value());
    now_ns += *next == a ? 30 * kMs : 2 * kMs;
    order.End(*next, now_ns);
    order.Wait(*next, true);
  }
  EXPECT_NEAR(static_cast<double>(order.used_ns(a)) / static_cast<double>(order.used_ns(b)), 1,
              .05);
}

TEST(TurnOrderTest, WhoWithdrawsAsksAgain) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(0);
  order.Wait(b, true);
  order.Withdraw(b);
  EXPECT_FALSE(order.Next(0).has_value());  // it is about to come
  order.Wait(b);
  EXPECT_EQ(order.Next(0), b);
  order.End(b, kMs);
  order.Rest(b);
  order.Wait(a);
  EXPECT_EQ(order.Next(kMs), a);
}

TEST(TurnOrderTest, WhoLeavesIsForgotten) {
  TurnOrder order;
  const int a = order.Join(0);
  const int b = order.Join(5);
  order.Wait(a);
  order.Wait(b);
  ASSERT_EQ(order.Next(0), b);
  order.End(b, 100 * kMs);
  EXPECT_FALSE(order.Next(100 * kMs).has_value());
  order.Leave(b);
  EXPECT_EQ(order.Next(100 * kMs), a);
  EXPECT_EQ(order.Join(0), b);  // its place, without its debt
  EXPECT_EQ(order.used_ns(b), 0);
}

}  // namespace
}  // namespace moesaic
