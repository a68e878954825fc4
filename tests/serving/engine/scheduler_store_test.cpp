// Prefixes that are read from a store.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/serving/engine/scheduler_rig.h"

namespace moesaic {
namespace {

// A store that has the first blocks of everybody, and reads when the test says so.
class ScriptedStore : public PrefixStore {
 public:
  int64_t stored = 0;           // blocks of each sequence
  int64_t most_done = 1 << 20;  // blocks that can be read in all
  bool hold = false;            // reads end later
  int64_t sealed = 0;
  int64_t ended = 0;
  std::vector<int64_t> reads;  // blocks of each

  int64_t Begin(Sequence& /*sequence*/, int64_t most) override { return std::min(stored, most); }
  void Read(Sequence& sequence, int64_t first, int64_t count, int64_t until) override {
    EXPECT_EQ(sequence.stored.read, 0u);
    EXPECT_EQ(first, sequence.blocks.sealed);
    EXPECT_LE(first + count, until);
    for (const SequenceBlocks::Table& table : sequence.blocks.tables) {
      ASSERT_GE(std::ssize(table.blocks), first + count);
      for (int64_t b = first; b < first + count; ++b) {
        EXPECT_GE(table.blocks[static_cast<size_t>(b)], 0);
      }
    }
    sequence.stored.read = 1;
    reads.push_back(count);
  }
  Progress Poll(const Sequence& sequence) const override {
    EXPECT_EQ(sequence.stored.read, 1u);
    if (hold) return {};
    return {.done = std::min(most_done, reads.back()), .from_memory = 0, .ended = true};
  }
  void Stop(Sequence& sequence) override { sequence.stored.read = 0; }
  void Sealed(Sequence& /*sequence*/, int64_t /*block*/) override { ++sealed; }
  void End(Sequence& sequence) override {
    Stop(sequence);
    ++ended;
  }
};

// Who waits for the store is in no piece, holds nobody up, and is in the next one.
TEST(SchedulerTest, AStoredPrefixIsReadBesideAPiece) {
  KvManager kv = OneGroup(64);
  ScriptedStore store;
  Scheduler scheduler(
      {.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = true, .piece_tokens = 300}, kv,
      &store);
  scheduler.Add(MakeSequence(1, 5, 100));
  FinishStep(scheduler, scheduler.Plan());
  store.stored = 4;
  store.hold = true;
  scheduler.Add(MakeSequence(2, 100, 10));
  EXPECT_TRUE(scheduler.PlanPiece(kAlways).empty());
  EXPECT_EQ(scheduler.restoring(), 1);
  store.stored = 0;
  scheduler.Add(MakeSequence(3, 120, 10));
  EXPECT_EQ(IdsOf(scheduler.PlanPiece(kAlways)), (std::vector<RequestId>{3}));
  store.hold = false;
  while (scheduler.restoring() > 0) {
    EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{1}));
    FinishStep(scheduler, scheduler.Plan());
  }
  EXPECT_EQ(store.reads, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(scheduler.Find(2)->computed_tokens, 64);
  EXPECT_EQ(FinishPiece(scheduler), (std::vector<RequestId>{3}));
  EXPECT_EQ(store.sealed, 120 / 16);
  const auto piece = scheduler.PlanPiece(kAlways);
  ASSERT_EQ(IdsOf(piece), (std::vector<RequestId>{2}));
  EXPECT_EQ(piece[0].num_tokens, 36);
  EXPECT_EQ(scheduler.Find(2)->cached_tokens, 64);
}

TEST(SchedulerTest, ReadsAStoredPrefixWhileOthersRun) {
  KvManager kv = OneGroup(64);
  ScriptedStore store;
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = true}, kv,
                      &store);
  scheduler.Add(MakeSequence(1, 5, 100));
  FinishStep(scheduler, scheduler.Plan());
  store.stored = 5;
  store.hold = true;
  scheduler.Add(MakeSequence(2, 100, 10));
  for (int step = 0; step < 3; ++step) {
    const auto plan = scheduler.Plan();
    ASSERT_EQ(plan.size(), 1u);  // the other one decodes
    EXPECT_EQ(plan[0].sequence->id, 1u);
    FinishStep(scheduler, plan);
  }
  EXPECT_EQ(store.reads, (std::vector<int64_t>{2}));
  store.hold = false;
  // A step's worth of tokens at a time.
  for (int step = 0; step < 2; ++step) {
    const auto plan = scheduler.Plan();
    ASSERT_EQ(plan.size(), 1u);
    FinishStep(scheduler, plan);
  }
  EXPECT_EQ(store.reads, (std::vector<int64_t>{2, 2, 1}));
  const auto plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[1].num_tokens, 20);
  EXPECT_EQ(plan[1].sequence->computed_tokens, 80);
  EXPECT_EQ(plan[1].sequence->cached_tokens, 80);
  EXPECT_EQ(scheduler.prefixes().from_store, 80);
  FinishStep(scheduler, plan);
  EXPECT_EQ(store.sealed, 1);  // of the new blocks one is full
  // The kv have it now.
  store.reads.clear();
  auto again = MakeSequence(3, 100, 10);
  again->tokens = MakeSequence(2, 100, 10)->tokens;
  scheduler.Add(std::move(again));
  scheduler.Plan();
  EXPECT_TRUE(store.reads.empty());
  EXPECT_EQ(scheduler.prefixes().from_pool, 96);
}

TEST(SchedulerTest, ComputesWhatTheStoreHasLost) {
  KvManager kv = OneGroup(64);
  ScriptedStore store;
  store.stored = 6;
  store.most_done = 2;
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 64, .prefix_cache = true}, kv,
                      &store);
  scheduler.Add(MakeSequence(1, 100, 10));
  EXPECT_TRUE(scheduler.Plan().empty());  // it waits for the store
  EXPECT_EQ(scheduler.running(), 1);
  const auto plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].sequence->computed_tokens, 32);
  EXPECT_EQ(plan[0].num_tokens, 64);
  EXPECT_EQ(plan[0].sequence->cached_tokens, 32);
  FinishStep(scheduler, plan);
  EXPECT_EQ(store.reads, (std::vector<int64_t>{4}));
}

TEST(SchedulerTest, AReadEndsBeforeItsBlocksAreGivenBack) {
  KvManager kv = OneGroup(16);
  ScriptedStore store;
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 64, .prefix_cache = true}, kv,
                      &store);
  scheduler.Add(MakeSequence(1, 60, 200));
  FinishStep(scheduler, scheduler.Plan());
  store.stored = 3;
  store.hold = true;
  scheduler.Add(MakeSequence(2, 100, 10));
  Sequence* const second = scheduler.Find(2);
  while (scheduler.preemptions() == 0) FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(second->stored.read, 0u);
  EXPECT_EQ(second->restored_until, 0);
  EXPECT_EQ(second->computed_tokens, 0);
  EXPECT_TRUE(second->blocks.empty());
  scheduler.Remove(second);
  // One that is cancelled while it waits.
  scheduler.Remove(scheduler.Find(1));
  scheduler.Add(MakeSequence(3, 100, 10));
  EXPECT_TRUE(scheduler.Plan().empty());
  scheduler.Remove(scheduler.Find(3));
  EXPECT_EQ(kv.pool().used_blocks(), 0);
}

// A group with a window has room for a part of the context only, also while that is read.
TEST(SchedulerTest, WindowsBoundWhatIsReadAtATime) {
  KvManager kv = WithWindows({0, 32}, 224);
  ScriptedStore store;
  store.stored = 150;
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 48, .prefix_cache = true}, kv,
                      &store);
  scheduler.Add(MakeSequence(1, 150 * 16 + 5, 10));
  while (scheduler.Plan().empty()) {
  }
  EXPECT_EQ(scheduler.Find(1)->cached_tokens, 150 * 16);
  EXPECT_EQ(store.reads.size(), 50u);
  EXPECT_EQ(scheduler.preemptions(), 0);
}

}  // namespace
}  // namespace moesaic
