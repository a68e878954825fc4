#include "prefetch/link/host_rate.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(HostRateTest, AnswersWithTheNearestNumberOfRows) {
  HostRate rate;
  EXPECT_EQ(rate.ExpertNs(1), 0);
  rate.Measured(1, 1000);
  rate.Measured(64, 20'000);
  EXPECT_EQ(rate.ExpertNs(1), 1000);
  EXPECT_EQ(rate.ExpertNs(4), 1000);
  EXPECT_EQ(rate.ExpertNs(16), 20'000);
  EXPECT_EQ(rate.ExpertNs(100), 20'000);
  EXPECT_EQ(rate.ExpertNs(int64_t{1} << 40), 20'000);
}

TEST(HostRateTest, FollowsWhatIsMeasured) {
  HostRate rate;
  for (int i = 0; i < 100; ++i) rate.Measured(2, 1000);
  for (int i = 0; i < 100; ++i) rate.Measured(3, 3000);
  EXPECT_NEAR(static_cast<double>(rate.ExpertNs(2)), 3000, 1);
}

TEST(HostRateTest, WhatIsNotTriedLooksFasterUntilItIs) {
  HostRate rate;
  rate.Measured(1, 1e6);
  rate.Measured(1024, 1e6);
  for (int i = 0; i < 300; ++i) rate.PassedOver(2);  // answered with what one row takes
  EXPECT_LT(rate.ExpertNs(1), 500'000);
  EXPECT_GT(rate.ExpertNs(1), 300'000);
  EXPECT_EQ(rate.ExpertNs(1024), 1'000'000);
  for (int i = 0; i < 100'000; ++i) rate.PassedOver(1);
  EXPECT_EQ(rate.ExpertNs(1), 1);
}

}  // namespace
}  // namespace moesaic
