#include "cache/kv_block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/kv_memory.h"

namespace moesaic {
namespace {

using Tokens = std::vector<int32_t>;

TEST(KvBlockPoolTest, HandsOutEachBlockOnce) {
  KvBlockPool pool(3, 4);
  std::vector<int32_t> blocks;
  blocks.reserve(3);
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.Allocate().value());
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(blocks, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_FALSE(pool.Allocate().has_value());
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_EQ(pool.used_blocks(), 3);
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 1);
}

TEST(KvBlockPoolTest, NoBlocks) {
  KvBlockPool pool(0, 16);
  EXPECT_FALSE(pool.Allocate().has_value());
  EXPECT_FALSE(pool.Lookup(kEmptyPrefix, Tokens(16, 1)).has_value());
}

TEST(KvBlockPoolTest, SharedBlocksAreFreeWhenTheLastReferenceEnds) {
  KvBlockPool pool(1, 1);
  const int32_t block = pool.Allocate().value();
  pool.Seal(block, kEmptyPrefix, Tokens{7});
  ASSERT_TRUE(pool.Lookup(kEmptyPrefix, Tokens{7}).has_value());
  EXPECT_EQ(pool.references(block), 2);
  pool.Release(block);
  EXPECT_FALSE(pool.Allocate().has_value());
  pool.Release(block);
  EXPECT_TRUE(pool.Allocate().has_value());
}

TEST(KvBlockPoolTest, SealedBlocksAreFoundByWhatTheyHold) {
  KvBlockPool pool(4, 2);
  const int32_t first = pool.Allocate().value();
  const PrefixId a = pool.Seal(first, kEmptyPrefix, Tokens{1, 2});
  EXPECT_NE(a, kEmptyPrefix);
  const int32_t second = pool.Allocate().value();
  const PrefixId b = pool.Seal(second, a, Tokens{3, 4});
  const auto hit = pool.Lookup(kEmptyPrefix, Tokens{1, 2});
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->block, first);
  EXPECT_EQ(hit->prefix, a);
  EXPECT_EQ(pool.references(first), 2);
  EXPECT_EQ(pool.Lookup(hit->prefix, Tokens{3, 4})->prefix, b);
  // The same tokens after another prefix are another block's content.
  EXPECT_FALSE(pool.Lookup(kEmptyPrefix, Tokens{3, 4}).has_value());
  EXPECT_FALSE(pool.Lookup(b, Tokens{3, 4}).has_value());
  EXPECT_FALSE(pool.Lookup(kEmptyPrefix, Tokens{2, 1}).has_value());
  EXPECT_EQ(pool.counters().lookups, 5u);
  EXPECT_EQ(pool.counters().hits, 2u);
  EXPECT_EQ(pool.counters().revived, 0u);
}

TEST(KvBlockPoolTest, ATwinIsNotFindableAndItsTailJoinsTheFirst) {
  KvBlockPool pool(3, 2);
  const int32_t first = pool.Allocate().value();
  const int32_t twin = pool.Allocate().value();
  const PrefixId a = pool.Seal(first, kEmptyPrefix, Tokens{1, 2});
  EXPECT_EQ(pool.Seal(twin, kEmptyPrefix, Tokens{1, 2}), a);
  EXPECT_EQ(pool.Lookup(kEmptyPrefix, Tokens{1, 2})->block, first);
  EXPECT_EQ(pool.prefix(twin), kEmptyPrefix);
  EXPECT_EQ(pool.sealed_blocks(), 1);
}

TEST(KvBlockPoolTest, FreeSealedBlocksCanBeRevived) {
  KvBlockPool pool(2, 2);
  const int32_t block = pool.Allocate().value();
  const PrefixId prefix = pool.Seal(block, kEmptyPrefix, Tokens{7, 8});
  pool.Release(block);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.cached_blocks(), 1);
  const auto hit = pool.Lookup(kEmptyPrefix, Tokens{7, 8});
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->block, block);
  EXPECT_EQ(hit->prefix, prefix);
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_EQ(pool.cached_blocks(), 0);
  EXPECT_EQ(pool.references(block), 1);
  EXPECT_EQ(pool.counters().revived, 1u);
}

TEST(KvBlockPoolTest, EmptyBlocksGoFirstThenTheLongestUnusedSealedOnes) {
  KvBlockPool pool(4, 1);
  std::vector<int32_t> blocks;
  blocks.reserve(4);
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Allocate().value());
  for (int i = 0; i < 3; ++i) {
    pool.Seal(blocks[static_cast<size_t>(i)], kEmptyPrefix, Tokens{i});
  }
  pool.Release(blocks[1]);
  pool.Release(blocks[0]);
  pool.Release(blocks[3]);  // empty
  pool.Release(blocks[2]);
  EXPECT_EQ(pool.Allocate(), blocks[3]);
  EXPECT_EQ(pool.counters().displaced, 0u);
  // A revival makes a block recent again.
  pool.Release(pool.Lookup(kEmptyPrefix, Tokens{1})->block);
  EXPECT_EQ(pool.Allocate(), blocks[0]);
  EXPECT_FALSE(pool.Lookup(kEmptyPrefix, Tokens{0}).has_value());
  EXPECT_EQ(pool.Allocate(), blocks[2]);
  EXPECT_EQ(pool.Allocate(), blocks[1]);
  EXPECT_EQ(pool.counters().displaced, 3u);
  EXPECT_EQ(pool.sealed_blocks(), 0);
}

TEST(KvBlockPoolTest, AnIdIsNeverUsedTwice) {
  // The block that held the parent is given away and holds the same tokens again later: what was
  // sealed after the first parent must not be found after the second one.
  KvBlockPool pool(2, 1);
  const int32_t parent = pool.Allocate().value();
  const PrefixId old_prefix = pool.Seal(parent, kEmptyPrefix, Tokens{1});
  const int32_t child = pool.Allocate().value();
  pool.Seal(child, old_prefix, Tokens{2});
  pool.Release(parent);
  ASSERT_EQ(pool.Allocate(), parent);
  const PrefixId new_prefix = pool.Seal(parent, kEmptyPrefix, Tokens{1});
  EXPECT_NE(new_prefix, old_prefix);
  EXPECT_FALSE(pool.Lookup(new_prefix, Tokens{2}).has_value());
}

TEST(KvBlockPoolDeathTest, MisuseIsABug) {
  KvBlockPool pool(2, 2);
  EXPECT_DEATH(pool.Release(0), "");
  EXPECT_DEATH(pool.Release(2), "");
  const int32_t block = pool.Allocate().value();
  EXPECT_DEATH(pool.Seal(block, kEmptyPrefix, Tokens{1}), "");  // not a full block
  pool.Seal(block, kEmptyPrefix, Tokens{1, 2});
  EXPECT_DEATH(pool.Seal(block, kEmptyPrefix, Tokens{1, 3}), "");
}

// The pool as one would write it without caring for speed. A prefix is the list of all its tokens'
// owners: (parent id, tokens) -> block.
struct ModelPool {
  struct Block {
    int references = 0;
    PrefixId prefix = kEmptyPrefix;
    std::pair<PrefixId, Tokens> key;
  };
  std::map<int32_t, Block> blocks;
  std::deque<int32_t> free;  // in the order in which they are to be taken
  std::map<std::pair<PrefixId, Tokens>, int32_t> sealed;
};

TEST(KvBlockPoolPropertyTest, RandomSchedulesAgainstASimpleModel) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int schedule = 0; schedule < 500; ++schedule) {
    const auto count = static_cast<int32_t>(1 + random() % 24);
    const int64_t block_tokens = 1 + static_cast<int64_t>(random() % 3);
    auto usable = static_cast<int32_t>(random() % static_cast<uint64_t>(count + 1));
    KvBlockPool pool(usable, block_tokens, count);
    ModelPool model;
    for (int32_t b = 0; b < count; ++b) {
      model.blocks[b] = {};
      if (b < usable) model.free.push_back(b);
    }
    std::vector<PrefixId> prefixes = {kEmptyPrefix};
    const auto any_tokens = [&] {
      Tokens tokens(static_cast<size_t>(block_tokens));
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 3) - 1;
      return tokens;
    };
    for (int step = 0; step < 300; ++step) {
      const auto block = static_cast<int32_t>(random() % static_cast<uint64_t>(count));
      ModelPool::Block& m = model.blocks[block];
      const auto forget = [&](ModelPool::Block& closed) {
        if (closed.prefix != kEmptyPrefix) model.sealed.erase(closed.key);
        closed = {};
      };
      switch (random() % 21) {
        case 20: {
          const auto now = static_cast<int32_t>(random() % static_cast<uint64_t>(count + 1));
          for (int32_t b = now; b < usable; ++b) {
            if (model.blocks[b].references > 0) continue;
            std::erase(model.free, b);
            forget(model.blocks[b]);
          }
          for (int32_t b = usable; b < now; ++b) {
            if (model.blocks[b].references == 0) model.free.push_back(b);
          }
          usable = now;
          pool.SetBlocks(now);
          break;
        }
        case 0:
        case 1:
        case 2:
        case 3:
        case 4: {
          const std::optional<int32_t> got = pool.Allocate();
          ASSERT_EQ(got.has_value(), !model.free.empty());
          if (!got) break;
          ASSERT_EQ(*got, model.free.front());
          model.free.pop_front();
          ModelPool::Block& taken = model.blocks[*got];
          if (taken.prefix != kEmptyPrefix) model.sealed.erase(taken.key);
          taken = {1, kEmptyPrefix, {}};
          break;
        }
        case 5:
        case 6:
        case 7:
        case 8:
        case 9:
          if (m.references == 0) break;
          pool.Release(block);
          if (--m.references > 0) break;
          if (block >= usable) {
            forget(m);
            break;
          }
          if (m.prefix == kEmptyPrefix) {
            model.free.push_front(block);
          } else {
            model.free.push_back(block);
          }
          break;
        case 10:
        case 11:
        case 12:
        case 13:
        case 14: {
          if (m.references == 0 || m.prefix != kEmptyPrefix) break;
          const PrefixId parent = prefixes[random() % prefixes.size()];
          const Tokens tokens = any_tokens();
          const PrefixId prefix = pool.Seal(block, parent, tokens);
          const auto twin = model.sealed.find({parent, tokens});
          if (twin != model.sealed.end()) {
            ASSERT_EQ(prefix, model.blocks[twin->second].prefix);
            break;
          }
          ASSERT_EQ(std::count(prefixes.begin(), prefixes.end(), prefix), 0);
          prefixes.push_back(prefix);
          m.prefix = prefix;
          m.key = {parent, tokens};
          model.sealed[m.key] = block;
          break;
        }
        default: {
          const PrefixId parent = prefixes[random() % prefixes.size()];
          const Tokens tokens = any_tokens();
          const auto hit = pool.Lookup(parent, tokens);
          const auto expected = model.sealed.find({parent, tokens});
          ASSERT_EQ(hit.has_value(), expected != model.sealed.end());
          if (!hit) break;
          ASSERT_EQ(hit->block, expected->second);
          ModelPool::Block& found = model.blocks[hit->block];
          ASSERT_EQ(hit->prefix, found.prefix);
          if (found.references++ == 0) std::erase(model.free, hit->block);
        }
      }
      ASSERT_EQ(pool.num_blocks(), usable);
      int64_t held = 0;
      int64_t end = usable;
      for (const auto& [b, state] : model.blocks) {
        if (state.references == 0) continue;
        ++held;
        end = std::max<int64_t>(end, b + 1);
      }
      ASSERT_EQ(pool.used_blocks(), held);
      ASSERT_EQ(pool.open_end(), end);
      ASSERT_EQ(pool.free_blocks(), static_cast<int64_t>(model.free.size()));
      ASSERT_EQ(pool.sealed_blocks(), static_cast<int64_t>(model.sealed.size()));
      ASSERT_EQ(pool.cached_blocks(),
                std::count_if(model.free.begin(), model.free.end(),
                              [&](int32_t b) { return model.blocks[b].prefix != kEmptyPrefix; }));
      for (const auto& [b, state] : model.blocks) {
        ASSERT_EQ(pool.references(b), state.references);
        ASSERT_EQ(pool.prefix(b), state.prefix);
      }
    }
  }
}

TEST(KvBlockPoolTest, WhatClosesIsNotHandedOutAnyMore) {
  KvBlockPool pool(4, 1, 6);
  for (int i = 0; i < 4; ++i) pool.Allocate();
  pool.Release(1);
  pool.SetBlocks(2);
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_EQ(pool.used_blocks(), 3);
  EXPECT_EQ(pool.open_end(), 4);  // who has it goes on
  pool.Release(2);
  EXPECT_EQ(pool.open_end(), 4);
  pool.Release(3);
  EXPECT_EQ(pool.open_end(), 2);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_FALSE(pool.Allocate().has_value());
  pool.SetBlocks(6);
  EXPECT_EQ(pool.free_blocks(), 4);
  EXPECT_EQ(pool.Allocate(), 2);
}

// Blocks of all layers are apart, and those of later slabs behind those of earlier ones.
TEST(KvSlabsTest, EveryBlockOfALayerHasItsBytes) {
  for (const int64_t slab_blocks : {1, 3, 8}) {
    const std::vector<uint64_t> bytes = {5, 11, 2};  // of a block, of each layer
    const KvSlabs slabs = {.blocks = slab_blocks,
                           .slab_bytes = 18 * static_cast<uint64_t>(slab_blocks)};
    std::vector<int> owners(slabs.Bytes(8), 0);
    EXPECT_EQ(owners.size(),
              18 * static_cast<size_t>((8 + slab_blocks - 1) / slab_blocks * slab_blocks));
    for (int32_t block = 0; block < 8; ++block) {
      uint64_t before = 0;
      for (const uint64_t of_layer : bytes) {
        const uint64_t at = slabs.Offset(block, before, of_layer);
        EXPECT_GE(at, slabs.Bytes(block / slab_blocks * slab_blocks));
        EXPECT_LE(at + of_layer, slabs.Bytes(block + 1));
        for (uint64_t i = 0; i < of_layer; ++i) ++owners[at + i];
        before += of_layer;
      }
    }
    EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), 8 * 18);
  }
}

// Blocks that outlive the pool keep their numbers and their order.
TEST(KvBlockPoolTest, AdoptsWhatAnotherPoolHeld) {
  KvBlockPool pool(4, 2);
  const std::vector<int32_t> a = {1, 2};
  const std::vector<int32_t> b = {3, 4};
  EXPECT_TRUE(pool.Adopt(2, 70, kEmptyPrefix, a));
  EXPECT_TRUE(pool.Adopt(0, 90, 70, b));
  EXPECT_FALSE(pool.Adopt(1, 95, 70, b));
  EXPECT_EQ(pool.cached_blocks(), 2);
  EXPECT_EQ(pool.Lookup(70, b)->prefix, 90u);
  EXPECT_EQ(pool.tokens(0)[1], 4);
  EXPECT_EQ(*pool.Allocate(), 1);       // empty ones first, then those that were adopted first
  EXPECT_EQ(pool.Seal(1, 90, b), 91u);  // behind the numbers that were adopted
  pool.SkipTo(100);
  EXPECT_EQ(*pool.Allocate(), 3);
  EXPECT_EQ(pool.Seal(3, 90, a), 101u);
  EXPECT_EQ(*pool.Allocate(), 2);
  EXPECT_EQ(pool.counters().displaced, 1u);
  // What is forgotten is found no more, and is the first to be used again.
  pool.Forget(0);
  EXPECT_FALSE(pool.Lookup(70, b));
  pool.Release(0);
  pool.Release(3);
  EXPECT_EQ(pool.cached_blocks(), 1);
  EXPECT_EQ(*pool.Allocate(), 0);
}

}  // namespace
}  // namespace moesaic
