// Prompts that run layer after layer, beside steps.
#include <gtest/gtest.h>

#include <algorithm>
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

}  // namespace
}  // namespace moesaic
