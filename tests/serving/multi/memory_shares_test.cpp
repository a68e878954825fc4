#include "serving/multi/memory_shares.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace moesaic {
namespace {

using Shares = std::vector<uint64_t>;

TEST(ShareMemoryTest, WhatIsLeftGoesWhereExpertsAreMissing) {
  const std::vector<MemoryNeed> needs = {{10, 20}, {30, 70}};
  EXPECT_EQ(ShareMemory(65, needs), (Shares{15, 50}));  // 25 over, of which 50 are missing
  EXPECT_EQ(ShareMemory(40, needs), (Shares{10, 30}));
  EXPECT_EQ(ShareMemory(90, needs), (Shares{20, 70}));
  EXPECT_EQ(ShareMemory(180, needs), (Shares{40, 140}));  // as large as they are
  EXPECT_EQ(ShareMemory(39, needs), Shares{});
  EXPECT_EQ(ShareMemory(0, {}), Shares{});
}

TEST(ShareMemoryTest, NobodyGetsLessThanTheLeastAndAllNoMoreThanThereIs) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<MemoryNeed> needs(1 + random() % 6);
    uint64_t least = 0;
    for (MemoryNeed& need : needs) {
      need.least_bytes = random() % (uint64_t{1} << (random() % 45));
      need.most_bytes = need.least_bytes + random() % (uint64_t{1} << (random() % 45));
      least += need.least_bytes;
    }
    const uint64_t bytes = random() % (uint64_t{1} << (random() % 48));
    const Shares shares = ShareMemory(bytes, needs);
    ASSERT_EQ(shares.empty(), bytes < least) << round;
    if (shares.empty()) continue;
    ASSERT_EQ(shares.size(), needs.size());
    EXPECT_LE(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), bytes);
    for (size_t i = 0; i < needs.size(); ++i) EXPECT_GE(shares[i], needs[i].least_bytes) << round;
  }
}

}  // namespace
}  // namespace moesaic
