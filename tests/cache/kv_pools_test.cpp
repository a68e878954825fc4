// Blocks of a sequence in groups of layers: what a window gives back, what is found again, and that
// no block is lost.
#include "cache/kv_pools.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

namespace moesaic {
namespace {

constexpr int64_t kTokensOfBlock = 4;
constexpr int64_t kTokensOfChunk = 8;

std::vector<int32_t> TokensOf(int seed, int64_t block) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < kTokensOfBlock; ++i) {
    tokens.push_back(seed * 1000 + static_cast<int32_t>(block * kTokensOfBlock) + i);
  }
  return tokens;
}

int64_t HeldIn(const SequenceBlocks& sequence, size_t group) {
  const std::vector<int32_t>& blocks = sequence.tables[group].blocks;
  return std::ssize(blocks) - std::count(blocks.begin(), blocks.end(), SequenceBlocks::kGivenBack);
}

TEST(KvPoolsTest, AWindowBoundsWhatASequenceHolds) {
  constexpr int64_t kWindow = 10;
  constexpr int64_t kStep = 3;
  const std::array<KvGroupSize, 2> sizes = {{{40, 0}, {6, kWindow}}};
  KvPools pools(sizes, kTokensOfBlock, kTokensOfChunk);
  EXPECT_TRUE(pools.Fits(160, kStep));
  EXPECT_FALSE(pools.Fits(161, kStep));  // the first group
  EXPECT_FALSE(pools.Fits(100, 16));     // the second one
  SequenceBlocks sequence;
  EXPECT_TRUE(pools.HasRoom(sequence, 160, kStep));
  for (int64_t computed = 0; computed < 150; computed += kStep) {
    ASSERT_TRUE(pools.Grow(sequence, computed + kStep)) << computed;
    EXPECT_TRUE(pools.HasRoom(sequence, 160, kStep)) << computed;
    // What the tokens of the step attend to is there.
    for (int64_t t = std::max<int64_t>(0, computed + 1 - kWindow); t < computed + kStep; ++t) {
      ASSERT_GE(sequence.tables[1].blocks[static_cast<size_t>(t / kTokensOfBlock)], 0) << t;
    }
    EXPECT_LE(HeldIn(sequence, 1),
              (kWindow + kTokensOfChunk + kStep + kTokensOfBlock - 1) / kTokensOfBlock);
    pools.GiveBackBehind(sequence, computed + kStep);
  }
  EXPECT_EQ(HeldIn(sequence, 0), 38);
  EXPECT_EQ(pools.pool(0).used_blocks(), 38);
  EXPECT_EQ(pools.pool(1).used_blocks(), HeldIn(sequence, 1));
  pools.Release(sequence);
  EXPECT_TRUE(sequence.empty());
  EXPECT_EQ(pools.pool(0).used_blocks(), 0);
  EXPECT_EQ(pools.pool(1).used_blocks(), 0);
}

TEST(KvPoolsTest, WhatTheWindowGaveBackIsFoundUntilItIsTaken) {
  const std::array<KvGroupSize, 2> sizes = {{{16, 0}, {7, 4}}};
  KvPools pools(sizes, kTokensOfBlock, kTokensOfBlock);
  SequenceBlocks first;
  for (int64_t block = 0; block < 5; ++block) {
    ASSERT_TRUE(pools.Grow(first, (block + 1) * kTokensOfBlock));
    pools.Seal(first, TokensOf(1, block));
    pools.GiveBackBehind(first, (block + 1) * kTokensOfBlock);
  }
  EXPECT_EQ(HeldIn(first, 1), 1);
  SequenceBlocks second;
  for (int64_t block = 0; block < 5; ++block) {
    ASSERT_TRUE(pools.Reuse(second, TokensOf(1, block))) << block;
  }
  EXPECT_EQ(second.tables[0].blocks, first.tables[0].blocks);
  EXPECT_FALSE(pools.Reuse(second, TokensOf(2, 5)));
  EXPECT_EQ(second.covered(), 5);
  pools.Release(second);
  // Four new blocks take the two that are free and, in the group with the window, the two that were
  // released first, which are the last ones: every group has the first two.
  SequenceBlocks third;
  ASSERT_TRUE(pools.Grow(third, 4 * kTokensOfBlock));
  ASSERT_TRUE(pools.Reuse(second, TokensOf(1, 0)));
  ASSERT_TRUE(pools.Reuse(second, TokensOf(1, 1)));
  EXPECT_FALSE(pools.Reuse(second, TokensOf(1, 2)));
  EXPECT_EQ(second.covered(), 2);
  EXPECT_EQ(second.tables[1].blocks.size(), 2u);
  pools.Release(second);
  pools.Release(first);
  pools.Release(third);
  EXPECT_EQ(pools.pool(0).used_blocks() + pools.pool(1).used_blocks(), 0);
}

TEST(KvPoolsTest, ABlockThatIsMissingLeavesWhatWasFound) {
  const std::array<KvGroupSize, 2> sizes = {{{4, 0}, {2, 0}}};
  KvPools pools(sizes, kTokensOfBlock, kTokensOfBlock);
  SequenceBlocks sequence;
  EXPECT_FALSE(pools.HasRoom(sequence, 12, 12));
  EXPECT_FALSE(pools.Grow(sequence, 12));
  EXPECT_EQ(pools.pool(0).used_blocks(), 3);
  EXPECT_EQ(pools.pool(1).used_blocks(), 2);
  pools.Release(sequence);
  EXPECT_EQ(pools.pool(0).used_blocks() + pools.pool(1).used_blocks(), 0);
}

// Sequences that grow, share and end at random: a block is of one sequence or of a shared prefix.
TEST(KvPoolsTest, NoBlockIsLostOrGivenTwice) {
  std::mt19937 random(7);
  const std::array<KvGroupSize, 3> sizes = {{{24, 0}, {16, 6}, {16, 14}}};
  KvPools pools(sizes, kTokensOfBlock, kTokensOfChunk);
  struct Running {
    SequenceBlocks blocks;
    int seed = 0;
    int64_t computed = 0;
  };
  std::vector<Running> running;
  for (int step = 0; step < 4000; ++step) {
    if (running.size() < 4 && random() % 4 == 0) {
      Running& next = running.emplace_back();
      next.seed = static_cast<int>(random() % 3);
      while (next.computed < 20 &&
             pools.Reuse(next.blocks, TokensOf(next.seed, next.blocks.sealed))) {
        next.computed += kTokensOfBlock;
      }
      pools.GiveBackBehind(next.blocks, next.computed);
    }
    for (size_t i = 0; i < running.size();) {
      Running& one = running[i];
      const auto tokens = static_cast<int64_t>(1 + random() % 5);
      if (one.computed > 40 || !pools.Grow(one.blocks, one.computed + tokens)) {
        pools.Release(one.blocks);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      one.computed += tokens;
      while ((one.blocks.sealed + 1) * kTokensOfBlock <= one.computed) {
        pools.Seal(one.blocks, TokensOf(one.seed, one.blocks.sealed));
      }
      pools.GiveBackBehind(one.blocks, one.computed);
      ++i;
    }
    for (size_t g = 0; g < pools.groups(); ++g) {
      std::set<int32_t> held;
      for (const Running& one : running) {
        for (const int32_t block : one.blocks.tables[g].blocks) {
          if (block != SequenceBlocks::kGivenBack) held.insert(block);
        }
      }
      ASSERT_EQ(pools.pool(g).used_blocks(), std::ssize(held)) << "group " << g << " step " << step;
    }
  }
}

}  // namespace
}  // namespace moesaic
