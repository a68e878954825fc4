// Prompts and module batches that run layer after layer, beside steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "tests/serving/engine/scheduler_rig.h"

namespace moesaic {
namespace {

TEST(SchedulerTest, APieceTakesPromptsThatRunAndWaitAndOthersDecode) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler(
      {.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = false, .piece_tokens = 200}, kv);
  scheduler.Add(MakeSequence(1, 8, 20));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_TRUE(scheduler.PlanPiece(kAlways).empty());  // nobody has a prompt
  scheduler.Add(MakeSequence(2, 100, 9));
  std::vector<int64_t> asked;
  EXPECT_TRUE(scheduler
                  .PlanPiece([&](int64_t tokens) {
                    asked.push_back(tokens);
                    return false;
                  })
                  .empty());
  EXPECT_EQ(asked, (std::vector<int64_t>{100}));
  auto plan = scheduler.Plan();  // in chunks, then
  ASSERT_EQ(IdsOf(plan), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(plan[1].num_tokens, 31);
  FinishStep(scheduler, plan);
  scheduler.Add(MakeSequence(3, 50, 9));
  scheduler.Add(MakeSequence(4, 150, 9));
  scheduler.Add(MakeSequence(5, 40, 9));  // there is no place for it
  auto piece = scheduler.PlanPiece(kAlways);
  EXPECT_EQ(IdsOf(piece), (std::vector<RequestId>{2, 3, 4}));
  EXPECT_EQ(piece[0].num_tokens, 69);
  EXPECT_EQ(piece[1].num_tokens, 50);
  EXPECT_EQ(piece[2].num_tokens, 81);  // what is left of 200
  for (int step = 0; step < 3; ++step) {
    plan = scheduler.Plan();
    EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{1}));
    FinishStep(scheduler, plan);
  }
  EXPECT_EQ(FinishPiece(scheduler), (std::vector<RequestId>{2, 3}));
  EXPECT_EQ(scheduler.Find(4)->computed_tokens, 81);
  piece = scheduler.PlanPiece(kAlways);
  EXPECT_EQ(IdsOf(piece), (std::vector<RequestId>{4}));
  EXPECT_EQ(piece[0].num_tokens, 69);
  plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{1, 2, 3}));
}

TEST(SchedulerTest, WhoLeavesAPieceIsNotInIt) {
  KvManager kv = OneGroup(8);
  Scheduler scheduler(
      {.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = true, .piece_tokens = 200}, kv);
  scheduler.Add(MakeSequence(1, kKvBlockTokens - 1, 40));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(2, 3 * kKvBlockTokens, 9));
  scheduler.Add(MakeSequence(3, 4 * kKvBlockTokens, 9));
  EXPECT_EQ(IdsOf(scheduler.PlanPiece(kAlways)), (std::vector<RequestId>{2, 3}));
  EXPECT_EQ(kv.pool().free_blocks(), 0);
  // The one that decodes needs a block: the newest leaves.
  FinishStep(scheduler, scheduler.Plan());
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(IdsOf(scheduler.piece()), (std::vector<RequestId>{2}));
  EXPECT_EQ(scheduler.Find(3)->computed_tokens, 0);
  EXPECT_EQ(scheduler.preemptions(), 1);
  scheduler.Remove(scheduler.Find(2));
  EXPECT_TRUE(scheduler.piece().empty());
  EXPECT_EQ(IdsOf(scheduler.PlanPiece(kAlways)), (std::vector<RequestId>{3}));
  scheduler.AbandonPiece();  // it failed, and may be tried again
  EXPECT_EQ(scheduler.Find(3)->computed_tokens, 0);
  scheduler.PlanPiece(kAlways);
  EXPECT_EQ(FinishPiece(scheduler), (std::vector<RequestId>{3}));
  EXPECT_EQ(scheduler.Find(3)->blocks.sealed, 4);  // as if it had run in steps
}

// A piece has blocks for all of its tokens in the group with the window as well: one that lacks
// them is as long as there is room for, if there is room for the whole prompt in steps.
TEST(SchedulerTest, APieceIsAsLongAsItsWindowsHaveRoomFor) {
  KvManager kv = WithWindows({0, 32}, 100);
  Scheduler scheduler(
      {.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = true, .piece_tokens = 2000}, kv);
  scheduler.Add(MakeSequence(1, 1000, 9));  // 63 blocks, and 63 that the window gives back
  auto piece = scheduler.PlanPiece(kAlways);
  ASSERT_EQ(IdsOf(piece), (std::vector<RequestId>{1}));
  EXPECT_EQ(piece[0].num_tokens, 800);
  EXPECT_EQ(kv.pool().free_blocks(), 0);
  EXPECT_TRUE(FinishPiece(scheduler).empty());
  EXPECT_EQ(kv.pool().used_blocks(), 50 + 2);
  piece = scheduler.PlanPiece(kAlways);
  ASSERT_EQ(piece.size(), 1u);
  EXPECT_EQ(piece[0].num_tokens, 200);
  EXPECT_EQ(FinishPiece(scheduler), (std::vector<RequestId>{1}));
  EXPECT_EQ(scheduler.preemptions(), 0);
  scheduler.Remove(scheduler.Find(1));

  // Beside one that decodes it leaves half of what others could have.
  scheduler.Add(MakeSequence(2, 16, 200));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(3, 800, 9));
  piece = scheduler.PlanPiece(kAlways);
  ASSERT_EQ(IdsOf(piece), (std::vector<RequestId>{3}));
  EXPECT_GT(piece[0].num_tokens, 400);
  EXPECT_LT(piece[0].num_tokens, 800);
  EXPECT_GE(kv.pool().free_blocks(), 10);
  // In no piece, where there is not even room in steps.
  scheduler.AbandonPiece();
  scheduler.Remove(scheduler.Find(3));
  scheduler.Add(MakeSequence(4, 1290, 9));
  EXPECT_TRUE(scheduler.PlanPiece(kAlways).empty());
}

TEST(SchedulerTest, SomePromptsAreInNoPiece) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler(
      {.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = false, .piece_tokens = 200}, kv);
  scheduler.Add(InBackground(MakeSequence(1, 100, 9)));
  EXPECT_TRUE(scheduler.PlanPiece(kAlways).empty());
  FinishStep(scheduler, scheduler.Plan());
  auto with_logprobs = MakeSequence(2, 100, 9);
  with_logprobs->request.prompt_logprobs = 0;
  scheduler.Add(std::move(with_logprobs));
  scheduler.Add(MakeSequence(3, 100, 9));
  EXPECT_TRUE(scheduler.PlanPiece(kAlways).empty());  // nobody overtakes it
  while (scheduler.Find(2)->computed_tokens < 100) {
    EXPECT_TRUE(scheduler.PlanPiece(kAlways).empty());
    FinishStep(scheduler, scheduler.Plan());
  }
  EXPECT_EQ(IdsOf(scheduler.PlanPiece(kAlways)), (std::vector<RequestId>{3}));
}

constexpr SchedulerOptions kWithModuleBatches = {.max_num_seqs = 2,
                                                 .max_batch_tokens = 32,
                                                 .prefix_cache = false,
                                                 .module_batch_tokens = 100,
                                                 .background_seqs = 6};

// More lines and tokens than a step has. It stays as it is while others run, who need no place of
// theirs, and nothing else of the background runs until it has.
TEST(SchedulerTest, AModuleBatchIsLargerThanAStepAndWaitsForOthers) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler(kWithModuleBatches, kv);
  for (RequestId id = 1; id <= 5; ++id) scheduler.Add(InBackground(MakeSequence(id, 9, 2)));
  scheduler.Add(InBackground(MakeSequence(6, 90, 2)));
  scheduler.Add(InBackground(MakeSequence(7, 9, 2)));  // there is no place for it
  std::vector<int64_t> asked;
  EXPECT_TRUE(scheduler
                  .PlanModuleBatch([&](int64_t tokens) {
                    asked.push_back(tokens);
                    return false;
                  })
                  .empty());
  EXPECT_EQ(asked, (std::vector<int64_t>{5 * 9 + 32}));  // of a prompt no more than a step has
  const auto planned = scheduler.PlanModuleBatch(kAlways);
  EXPECT_EQ(IdsOf(planned), (std::vector<RequestId>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(planned[5].num_tokens, 32);
  EXPECT_TRUE(scheduler.Plan().empty());
  for (RequestId id = 8; id <= 10; ++id) scheduler.Add(MakeSequence(id, 8, 2));
  for (int step = 0; step < 4; ++step) {
    const auto plan = scheduler.Plan();
    for (const ScheduledSlice& slice : plan) EXPECT_FALSE(slice.sequence->request.background);
    EXPECT_LE(plan.size(), 2u);
    FinishStep(scheduler, plan);
  }
  EXPECT_EQ(scheduler.running(), 6);
  EXPECT_EQ(scheduler.waiting(), 1);
  EXPECT_EQ(scheduler.preemptions(), 0);
  EXPECT_EQ(scheduler.module_batch().size(), 6u);
  FinishModuleBatch(scheduler, 4);
  EXPECT_EQ(IdsOf(scheduler.module_batch()), (std::vector<RequestId>{5, 6}));
  EXPECT_TRUE(scheduler.Plan().empty());
  FinishModuleBatch(scheduler, 2);
  EXPECT_EQ(scheduler.Find(5)->computed_tokens, 9);
  EXPECT_EQ(scheduler.Find(6)->computed_tokens, 32);
  const auto next = scheduler.PlanModuleBatch(kAlways);
  EXPECT_EQ(IdsOf(next), (std::vector<RequestId>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(next[0].num_tokens, 1);
  scheduler.AbandonModuleBatch();  // it failed
  EXPECT_EQ(scheduler.Find(1)->computed_tokens, 9);
  // In steps fewer run, each as many as a step has sequences.
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{1, 2}));
}

// Others take blocks of those in it, and places of each other.
TEST(SchedulerTest, WhoIsPreemptedLeavesTheModuleBatch) {
  KvManager kv = OneGroup(6);
  Scheduler scheduler(kWithModuleBatches, kv);
  for (RequestId id = 1; id <= 3; ++id) {
    scheduler.Add(InBackground(MakeSequence(id, kKvBlockTokens * 2 - 2, 9)));
  }
  EXPECT_EQ(scheduler.PlanModuleBatch(kAlways).size(), 3u);
  ASSERT_EQ(kv.pool().free_blocks(), 0);
  scheduler.Add(WithPriority(1, MakeSequence(4, 8, 9)));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(IdsOf(scheduler.module_batch()), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(scheduler.Find(3)->computed_tokens, 0);
  scheduler.Add(WithPriority(1, MakeSequence(5, 8, 9)));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(6, 8, 9));  // the newer one of the others leaves, not a line
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{4, 6}));
  EXPECT_EQ(scheduler.preemptions(), 2);
  EXPECT_EQ(IdsOf(scheduler.module_batch()), (std::vector<RequestId>{1, 2}));
  scheduler.Remove(scheduler.Find(1));
  EXPECT_EQ(IdsOf(scheduler.module_batch()), (std::vector<RequestId>{2}));
}

// Log-probabilities of prompts are made of steps.
TEST(SchedulerTest, PromptLogprobsAreInNoModuleBatch) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler(kWithModuleBatches, kv);
  auto with_logprobs = InBackground(MakeSequence(1, 8, 1));
  with_logprobs->request.prompt_logprobs = 0;
  scheduler.Add(std::move(with_logprobs));
  scheduler.Add(InBackground(MakeSequence(2, 8, 9)));
  EXPECT_TRUE(scheduler.PlanModuleBatch(kAlways).empty());
  EXPECT_EQ(FinishStep(scheduler, scheduler.Plan()), (std::vector<RequestId>{1}));
  EXPECT_EQ(IdsOf(scheduler.PlanModuleBatch(kAlways)), (std::vector<RequestId>{2}));
  scheduler.AbandonModuleBatch();
  scheduler.Add(MakeSequence(3, 8, 9));
  EXPECT_TRUE(scheduler.PlanModuleBatch(kAlways).empty());  // others come first
}

// With others coming and going at any moment of module batches every request ends, no more have
// begun than there are places, and none is in two plans.
TEST(SchedulerTest, BothKindsEndBesideModuleBatches) {
  std::mt19937 random(17);
  for (int round = 0; round < 40; ++round) {
    KvManager kv = OneGroup(12);
    SchedulerOptions options = kWithModuleBatches;
    options.prefix_cache = round % 2 == 0;
    Scheduler scheduler(options, kv);
    RequestId next = 0;
    std::set<RequestId> open;
    std::set<RequestId> begun;
    const auto begin = [&](std::span<const ScheduledSlice> plan) {
      for (const Sequence* displaced : scheduler.displaced()) begun.erase(displaced->id);
      for (const RequestId id : IdsOf(plan)) begun.insert(id);
      ASSERT_LE(begun.size(), 8u);
    };
    const auto end = [&](const std::vector<RequestId>& ended) {
      for (const RequestId id : ended) {
        open.erase(id);
        begun.erase(id);
      }
    };
    for (int step = 0; step < 400 || !open.empty(); ++step) {
      ASSERT_LT(step, 8000);
      if (step < 400 && random() % 6 == 0 && open.size() < 16) {
        auto sequence = MakeSequence(++next, 1 + static_cast<int64_t>(random() % 80),
                                     1 + static_cast<int64_t>(random() % 40));
        sequence->request.background = random() % 3 != 0;
        sequence->request.priority = static_cast<int32_t>(random() % 2);
        open.insert(next);
        scheduler.Add(std::move(sequence));
      }
      const auto worth = [&](int64_t) { return random() % 4 != 0; };
      if (scheduler.module_batch().empty()) begin(scheduler.PlanModuleBatch(worth));
      const auto plan = scheduler.Plan();
      begin(plan);
      ASSERT_LE(plan.size(), 2u);
      std::set<RequestId> planned;
      for (const RequestId id : IdsOf(plan)) planned.insert(id);
      for (const RequestId id : IdsOf(scheduler.module_batch())) {
        ASSERT_TRUE(planned.insert(id).second);
      }
      ASSERT_EQ(planned.empty(), scheduler.empty());
      if (!plan.empty()) {
        end(FinishStep(scheduler, plan));
      } else if (const size_t size = scheduler.module_batch().size(); size > 0) {
        end(FinishModuleBatch(scheduler, 1 + random() % size));
      }
    }
    EXPECT_EQ(kv.pool().used_blocks(), 0);
    EXPECT_EQ(scheduler.running(), 0);
  }
}

}  // namespace
}  // namespace moesaic
