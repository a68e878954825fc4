// Blocks of a sequence in groups of layers: what a window gives back, what is found again, and that
// no block is lost.
#include "cache/kv_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

constexpr int64_t kTokensOfBlock = 4;
constexpr int64_t kTokensOfChunk = 8;

KvManager Manager(std::vector<int64_t> windows, int64_t blocks,
                  int64_t chunk_tokens = kTokensOfChunk) {
  return KvManager({std::move(windows), kTokensOfBlock, chunk_tokens}, blocks);
}

std::vector<int32_t> TokensOf(int seed, int64_t first_block, int64_t blocks) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(blocks * kTokensOfBlock));
  for (int64_t i = 0; i < blocks * kTokensOfBlock; ++i) {
    tokens.push_back(seed * 1000 + static_cast<int32_t>(first_block * kTokensOfBlock + i));
  }
  return tokens;
}

void SealNext(KvManager& kv, SequenceBlocks& sequence, int seed) {
  kv.Seal(sequence, TokensOf(seed, sequence.sealed, 1));
}

std::vector<int64_t> Lengths(const KvManager& kv, int seed, int64_t blocks) {
  const std::vector<KvManager::Prefix> found = kv.FindPrefixes(TokensOf(seed, 0, blocks));
  std::vector<int64_t> lengths(found.size());
  std::transform(found.begin(), found.end(), lengths.begin(),
                 [](const KvManager::Prefix& prefix) { return prefix.blocks; });
  return lengths;
}

int64_t HeldIn(const SequenceBlocks& sequence, size_t group) {
  const std::vector<int32_t>& blocks = sequence.tables[group].blocks;
  return std::ssize(blocks) - std::count(blocks.begin(), blocks.end(), SequenceBlocks::kGivenBack);
}

TEST(KvNeedsTest, WindowsNeedWhatTheyReach) {
  const KvNeeds needs = {{0, 10}, kTokensOfBlock, kTokensOfChunk};
  EXPECT_EQ(needs.Most(8, 3), 4);
  EXPECT_EQ(needs.Most(160, 3), 40 + 6);
  EXPECT_EQ(needs.Most(161, 3), 41 + 6);
  EXPECT_EQ(needs.MostTogether(4, 8, 3), 16);
  EXPECT_EQ(needs.MostTogether(4, 160, 3), 160 + 4 * 6 + 1);
  EXPECT_EQ(needs.Longest(46, 3, 1000), 160);
  EXPECT_EQ(needs.Longest(46, 3, 100), 100);
  EXPECT_EQ(needs.Longest(1, 3, 100), 0);
  const KvNeeds bounded = {{10}, kTokensOfBlock, kTokensOfChunk};
  EXPECT_EQ(bounded.Longest(6, 3, 100'000), 100'000);
  EXPECT_EQ(bounded.Longest(5, 3, 100'000), 20);
}

TEST(KvManagerTest, AWindowBoundsWhatASequenceHolds) {
  constexpr int64_t kWindow = 10;
  constexpr int64_t kStep = 3;
  KvManager kv = Manager({0, kWindow}, 46);
  EXPECT_TRUE(kv.Fits(160, kStep));
  EXPECT_FALSE(kv.Fits(161, kStep));
  EXPECT_FALSE(kv.Fits(150, 28));  // for the group with the window
  SequenceBlocks sequence;
  EXPECT_TRUE(kv.HasRoom(sequence, 160, kStep));
  for (int64_t computed = 0; computed < 150; computed += kStep) {
    ASSERT_TRUE(kv.Grow(sequence, computed + kStep)) << computed;
    EXPECT_TRUE(kv.HasRoom(sequence, 160, kStep)) << computed;
    // What the tokens of the step attend to is there.
    for (int64_t t = std::max<int64_t>(0, computed + 1 - kWindow); t < computed + kStep; ++t) {
      ASSERT_GE(sequence.tables[1].blocks[static_cast<size_t>(t / kTokensOfBlock)], 0) << t;
    }
    EXPECT_LE(HeldIn(sequence, 1),
              (kWindow + kTokensOfChunk + kStep + kTokensOfBlock - 1) / kTokensOfBlock);
    kv.GiveBackBehind(sequence, computed + kStep);
  }
  EXPECT_EQ(HeldIn(sequence, 0), 38);
  EXPECT_EQ(kv.pool().used_blocks(), 38 + HeldIn(sequence, 1));
  kv.Release(sequence);
  EXPECT_TRUE(sequence.empty());
  EXPECT_EQ(kv.pool().used_blocks(), 0);
}

// The group with the window is the first one: the other leads.
TEST(KvManagerTest, OfAPrefixAWindowNeedsItsEnd) {
  KvManager kv = Manager({4, 0}, 23, kTokensOfBlock);
  SequenceBlocks first;
  for (int64_t block = 0; block < 5; ++block) {
    ASSERT_TRUE(kv.Grow(first, (block + 1) * kTokensOfBlock));
    SealNext(kv, first, 1);
    kv.GiveBackBehind(first, (block + 1) * kTokensOfBlock);
  }
  EXPECT_EQ(HeldIn(first, 0), 1);
  EXPECT_EQ(kv.pool().used_blocks(), 6);
  EXPECT_EQ(Lengths(kv, 1, 6), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(Lengths(kv, 2, 5).empty());
  SequenceBlocks second;
  kv.Reuse(second, TokensOf(1, 0, 5));
  EXPECT_EQ(second.tables[1].blocks, first.tables[1].blocks);
  EXPECT_EQ(second.tables[0].blocks, first.tables[0].blocks);
  EXPECT_EQ(second.prefix, first.prefix);
  EXPECT_EQ(kv.pool().used_blocks(), 6);
  kv.Release(second);
  // Others take the 13 blocks that hold nothing, then those behind the window, in the order in
  // which they were given back: what is in front of the window of a longer prefix is not missed.
  SequenceBlocks third;
  ASSERT_TRUE(kv.Grow(third, 8 * kTokensOfBlock));
  EXPECT_EQ(Lengths(kv, 1, 5), (std::vector<int64_t>{4, 5}));
  kv.Reuse(second, TokensOf(1, 0, 4));
  EXPECT_EQ(second.covered(), 4);
  EXPECT_EQ(HeldIn(second, 0), 1);
  EXPECT_EQ(second.tables[0].kept_from, 3);
  // It is computed again up to there, and findable again.
  SequenceBlocks fourth;
  kv.Release(third);
  ASSERT_TRUE(kv.Grow(fourth, 2 * kTokensOfBlock));
  SealNext(kv, fourth, 1);
  SealNext(kv, fourth, 1);
  EXPECT_EQ(Lengths(kv, 1, 5), (std::vector<int64_t>{1, 2, 4, 5}));
  kv.Release(fourth);
  kv.Release(second);
  kv.Release(first);
  EXPECT_EQ(kv.pool().used_blocks(), 0);
  // Where all but one are taken nothing is found.
  ASSERT_TRUE(kv.Grow(third, 11 * kTokensOfBlock));
  EXPECT_TRUE(Lengths(kv, 1, 5).empty());
  kv.Release(third);
}

// Blocks of equal tokens, in groups alike: each group finds its own.
TEST(KvManagerTest, GroupsDoNotFindEachOthersBlocks) {
  KvManager kv = Manager({0, 0, 100}, 18);
  const std::vector<int32_t> tokens(3 * kTokensOfBlock, 7);
  SequenceBlocks first;
  ASSERT_TRUE(kv.Grow(first, 3 * kTokensOfBlock));
  for (int block = 0; block < 3; ++block) {
    kv.Seal(first, std::span(tokens).first(kTokensOfBlock));
  }
  SequenceBlocks second;
  kv.Reuse(second, tokens);
  std::set<int32_t> all;
  for (size_t g = 0; g < kv.groups(); ++g) {
    EXPECT_EQ(second.tables[g].blocks, first.tables[g].blocks) << g;
    all.insert(first.tables[g].blocks.begin(), first.tables[g].blocks.end());
  }
  EXPECT_EQ(all.size(), 9u);
}

TEST(KvManagerTest, ABlockThatIsMissingLeavesWhatWasFound) {
  KvManager kv = Manager({0, 0}, 5);
  SequenceBlocks sequence;
  EXPECT_TRUE(kv.HasRoom(sequence, 8, 8));
  EXPECT_FALSE(kv.HasRoom(sequence, 12, 12));
  EXPECT_FALSE(kv.Grow(sequence, 12));
  EXPECT_EQ(kv.pool().used_blocks(), 5);
  kv.Release(sequence);
  EXPECT_EQ(kv.pool().used_blocks(), 0);
}

// Sequences that grow, share and end at random: a block is of one sequence or of a shared prefix,
// and whoever attends to it finds what was computed of the same tokens in the same group.
TEST(KvManagerTest, NoBlockIsLostOrGivenTwice) {
  for (const std::vector<int64_t>& windows :
       {std::vector<int64_t>{0, 6, 14}, {6, 0}, {10}, {5, 0, 0, 9}}) {
    std::mt19937 random(7);
    const auto groups = std::ssize(windows);
    KvManager kv = Manager(windows, 16 * groups);
    struct Running {
      SequenceBlocks blocks;
      int seed = 0;
      int64_t computed = 0;
    };
    struct Content {
      int seed = -1;
      int64_t index = -1;
      size_t group = 0;
      bool operator==(const Content&) const = default;
    };
    std::vector<Content> contents(static_cast<size_t>(16 * groups));
    int64_t reused = 0;
    std::vector<Running> running;
    for (int step = 0; step < 3000; ++step) {
      if (running.size() < 4 && random() % 4 == 0) {
        Running& next = running.emplace_back();
        next.seed = static_cast<int>(random() % 3);
        const auto found = kv.FindPrefixes(TokensOf(next.seed, 0, 8));
        if (!found.empty() && random() % 4 > 0) {
          const KvManager::Prefix& prefix = found[random() % found.size()];
          kv.Reuse(next.blocks, TokensOf(next.seed, 0, prefix.blocks));
          EXPECT_EQ(next.blocks.prefix, prefix.id);
          next.computed = prefix.blocks * kTokensOfBlock;
          reused += prefix.blocks;
        }
      }
      for (size_t i = 0; i < running.size();) {
        Running& one = running[i];
        const auto tokens = static_cast<int64_t>(1 + random() % 5);
        if (one.computed > 40 || !kv.Grow(one.blocks, one.computed + tokens)) {
          kv.Release(one.blocks);
          running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
          continue;
        }
        const int64_t end = one.computed + tokens;
        for (size_t g = 0; g < windows.size(); ++g) {
          const int64_t first =
              windows[g] > 0 ? std::max<int64_t>(0, one.computed + 1 - windows[g]) : 0;
          for (int64_t t = first; t < end; ++t) {
            const int64_t index = t / kTokensOfBlock;
            const int32_t block = one.blocks.tables[g].blocks[static_cast<size_t>(index)];
            ASSERT_GE(block, 0) << "group " << g << " step " << step;
            Content& content = contents[static_cast<size_t>(block)];
            const Content its = {one.seed, index, g};
            if (t >= one.computed && t % kTokensOfBlock == 0) content = its;
            ASSERT_EQ(content, its) << "group " << g << " step " << step;
          }
        }
        one.computed = end;
        while ((one.blocks.sealed + 1) * kTokensOfBlock <= one.computed) {
          SealNext(kv, one.blocks, one.seed);
        }
        kv.GiveBackBehind(one.blocks, one.computed);
        ++i;
      }
      std::set<int32_t> held;
      for (const Running& one : running) {
        for (const SequenceBlocks::Table& table : one.blocks.tables) {
          for (const int32_t block : table.blocks) {
            if (block != SequenceBlocks::kGivenBack) held.insert(block);
          }
        }
      }
      ASSERT_EQ(kv.pool().used_blocks(), std::ssize(held)) << "step " << step;
    }
    EXPECT_GT(reused, 100);
  }
}

}  // namespace
}  // namespace moesaic
