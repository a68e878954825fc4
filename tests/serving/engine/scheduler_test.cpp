#include "serving/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/serving/engine/scheduler_rig.h"

namespace moesaic {
namespace {

TEST(SchedulerTest, PrefillIsCutToTheBudgetAndDecodesGoFirst) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(MakeSequence(1, 20, 10));
  scheduler.Add(MakeSequence(2, 50, 10));
  auto plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].num_tokens, 20);
  EXPECT_EQ(plan[1].num_tokens, 12);
  FinishStep(scheduler, plan);
  plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].sequence->id, 1u);
  EXPECT_EQ(plan[0].num_tokens, 1);
  EXPECT_EQ(plan[1].num_tokens, 31);
  FinishStep(scheduler, plan);
  plan = scheduler.Plan();
  EXPECT_EQ(plan[1].num_tokens, 7);
}

TEST(SchedulerTest, NoMoreThanMaxSequencesRun) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  for (RequestId id = 1; id <= 5; ++id) scheduler.Add(MakeSequence(id, 4, 2));
  EXPECT_EQ(scheduler.Plan().size(), 2u);
  EXPECT_EQ(scheduler.running(), 2);
  EXPECT_EQ(scheduler.waiting(), 3);
}

TEST(SchedulerTest, NewestIsPreemptedAndOldestEndsFirst) {
  // Two sequences of 16 + 20 tokens need 3 blocks each; the pool has 4.
  KvManager kv = OneGroup(4);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 64, .prefix_cache = false}, kv);
  scheduler.Add(MakeSequence(1, 16, 20));
  scheduler.Add(MakeSequence(2, 16, 20));
  std::vector<RequestId> ended;
  for (int step = 0; step < 200 && !scheduler.empty(); ++step) {
    for (const RequestId id : FinishStep(scheduler, scheduler.Plan())) ended.push_back(id);
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{1, 2}));
  EXPECT_GT(scheduler.preemptions(), 0);
  EXPECT_EQ(kv.pool().used_blocks(), 0);
}

// For who gives a pool more blocks: only those count that have nothing else to wait for.
TEST(SchedulerTest, TellsWhoWaitsForBlocks) {
  KvManager kv = OneGroup(4);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = 64, .prefix_cache = false}, kv);
  for (RequestId id = 1; id <= 3; ++id) scheduler.Add(MakeSequence(id, 20, 40));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(scheduler.running(), 2);
  scheduler.Plan();
  EXPECT_EQ(scheduler.waiting_for_blocks(), 0);  // the third one has no place
  for (int step = 0; step < 20; ++step) FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(scheduler.running(), 1);
  EXPECT_EQ(scheduler.waiting_for_blocks(), 2);
  auto line = MakeSequence(4, 20, 40);
  line->request.background = true;
  scheduler.Add(std::move(line));
  scheduler.Plan();
  EXPECT_EQ(scheduler.waiting_for_blocks(), 2);
}

TEST(SchedulerTest, APrefixIsReusedButNeverTheLastToken) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256, .prefix_cache = true}, kv);
  scheduler.Add(MakeSequence(1, 48, 1, 5));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_TRUE(scheduler.empty());
  scheduler.Add(MakeSequence(2, 48, 1, 5));
  auto plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].sequence->cached_tokens, 32);
  EXPECT_EQ(plan[0].num_tokens, 16);
  FinishStep(scheduler, plan);
  // Prompt log-probabilities need every position: nothing is reused.
  auto sequence = MakeSequence(3, 48, 1, 5);
  sequence->request.prompt_logprobs = 0;
  scheduler.Add(std::move(sequence));
  plan = scheduler.Plan();
  EXPECT_EQ(plan[0].num_tokens, 48);
  FinishStep(scheduler, plan);
  // Whose routing is to be told is run.
  for (const auto& [from, cached] : {std::pair{0, 0}, {15, 0}, {16, 16}, {40, 32}}) {
    sequence = MakeSequence(4, 48, 1, 5);
    sequence->request.routed_from = from;
    scheduler.Add(std::move(sequence));
    plan = scheduler.Plan();
    EXPECT_EQ(plan[0].num_tokens, 48 - cached) << from;
    FinishStep(scheduler, plan);
  }
}

// With blocks that only prompts share, what was decoded is nobody's prefix, and nobody's prompt is
// a prefix of what was decoded.
TEST(SchedulerTest, OnlyPromptsAreShared) {
  for (const bool only_prompts : {false, true}) {
    KvManager kv = OneGroup(64);
    Scheduler scheduler({.max_num_seqs = 4,
                         .max_batch_tokens = 256,
                         .prefix_cache = true,
                         .share_only_prompts = only_prompts},
                        kv);
    // 40 tokens of prompt, 24 of output; the engine of these tests answers with 7.
    scheduler.Add(MakeSequence(1, 40, 25, 7));
    while (!scheduler.empty()) FinishStep(scheduler, scheduler.Plan());
    scheduler.Add(MakeSequence(2, 65, 1, 7));
    auto plan = scheduler.Plan();
    EXPECT_EQ(plan[0].sequence->cached_tokens, only_prompts ? 32 : 64);
    FinishStep(scheduler, plan);
    // Now the first 64 are there as a prompt; a sequence that has decoded the last 24 of them (it
    // was preempted) may not have them.
    auto sequence = MakeSequence(3, 65, 1, 7);
    sequence->prompt_tokens = 40;
    scheduler.Add(std::move(sequence));
    plan = scheduler.Plan();
    EXPECT_EQ(plan[0].sequence->computed_tokens, only_prompts ? 32 : 64);
  }
}

TEST(SchedulerTest, RemoveReleasesAndForgets) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 1, .max_batch_tokens = 256, .prefix_cache = true}, kv);
  scheduler.Add(MakeSequence(1, 48, 4));
  scheduler.Add(MakeSequence(2, 48, 4));
  scheduler.Plan();
  EXPECT_EQ(scheduler.Remove(scheduler.Find(2))->id, 2u);
  EXPECT_EQ(scheduler.Remove(scheduler.Find(1))->id, 1u);
  EXPECT_EQ(scheduler.Find(1), nullptr);
  EXPECT_EQ(kv.pool().used_blocks(), 0);
  EXPECT_TRUE(scheduler.Plan().empty());
}

// Numbers of the sequences of a plan, and of their tokens.
std::vector<std::pair<RequestId, int64_t>> Planned(std::span<const ScheduledSlice> plan) {
  std::vector<std::pair<RequestId, int64_t>> slices;
  for (const ScheduledSlice& slice : plan) {
    slices.emplace_back(slice.sequence->id, slice.num_tokens);
  }
  return slices;
}
using Slices = std::vector<std::pair<RequestId, int64_t>>;

// A block is taken for the first of its tokens, not with the last of the one before.
TEST(SchedulerTest, BlocksAreTakenAtTheirFirstToken) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 64}, kv);
  scheduler.Add(MakeSequence(1, kKvBlockTokens - 1, 40));
  for (int64_t tokens = kKvBlockTokens - 1; tokens <= 2 * kKvBlockTokens + 1; ++tokens) {
    const auto plan = scheduler.Plan();
    ASSERT_EQ(plan.size(), 1u);
    EXPECT_EQ(plan[0].sequence->blocks.covered(), tokens <= 16   ? 1
                                                  : tokens <= 32 ? 2
                                                                 : 3)
        << tokens;
    EXPECT_EQ(plan[0].sequence->blocks.sealed, (tokens - 1) / 16) << tokens;
    FinishStep(scheduler, plan);
  }
}

TEST(SchedulerTest, WhatFitsExactlyIsAdmitted) {
  for (const int64_t second : {32, 33}) {
    KvManager kv = OneGroup(3);
    Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 100, .prefix_cache = false}, kv);
    scheduler.Add(MakeSequence(1, 16, 10));
    scheduler.Add(MakeSequence(2, second, 10));
    const auto plan = scheduler.Plan();
    if (second == 32) {
      EXPECT_EQ(Planned(plan), (Slices{{1, 16}, {2, 32}}));
      EXPECT_EQ(kv.pool().free_blocks(), 0);
    } else {  // its last token wants a fourth block
      EXPECT_EQ(Planned(plan), (Slices{{1, 16}}));
      EXPECT_EQ(scheduler.waiting(), 1);
      EXPECT_EQ(kv.pool().free_blocks(), 2);
    }
  }
}

// Room is wanted for the whole prompt, although the step has a budget for less.
TEST(SchedulerTest, RoomForAllThatIsPending) {
  KvManager kv = OneGroup(4);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(MakeSequence(1, 16, 10));
  scheduler.Add(MakeSequence(2, 49, 10));
  EXPECT_EQ(Planned(scheduler.Plan()), (Slices{{1, 16}}));
  scheduler.Remove(scheduler.Find(1));
  EXPECT_EQ(Planned(scheduler.Plan()), (Slices{{2, 32}}));
}

TEST(SchedulerTest, ABudgetIsSpentToTheLastToken) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 8, .max_batch_tokens = 20, .prefix_cache = false}, kv);
  scheduler.Add(MakeSequence(1, 20, 10));
  scheduler.Add(MakeSequence(2, 19, 10));
  scheduler.Add(MakeSequence(3, 5, 10));
  auto plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 20}}));
  EXPECT_EQ(scheduler.running(), 1);  // nobody is admitted for no token
  FinishStep(scheduler, plan);
  plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 1}, {2, 19}}));
  FinishStep(scheduler, plan);
  plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 1}, {2, 1}, {3, 5}}));
}

// What is looked up is whole blocks before the last token.
TEST(SchedulerTest, PrefixesAtTheBoundary) {
  for (const auto& [prompt, cached] :
       {std::pair{16, 0}, {17, 16}, {32, 16}, {33, 32}, {34, 32}, {48, 32}, {49, 32}}) {
    KvManager kv = OneGroup(64);
    Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256}, kv);
    scheduler.Add(MakeSequence(1, 32, 1, 5));  // two whole blocks
    FinishStep(scheduler, scheduler.Plan());
    scheduler.Add(MakeSequence(2, prompt, 1, 5));
    const auto plan = scheduler.Plan();
    EXPECT_EQ(plan[0].sequence->cached_tokens, cached) << prompt;
    EXPECT_EQ(plan[0].num_tokens, prompt - cached) << prompt;
  }
  for (const auto& [decode_from, cached] : {std::pair{31, 16}, {32, 32}, {33, 32}}) {
    KvManager kv = OneGroup(64);
    Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256, .share_only_prompts = true},
                        kv);
    auto sequence = MakeSequence(1, 48, 1, 5);
    sequence->request.decode_from = decode_from;
    scheduler.Add(std::move(sequence));
    FinishStep(scheduler, scheduler.Plan());
    scheduler.Add(MakeSequence(2, 60, 1, 5));
    EXPECT_EQ(scheduler.Plan()[0].sequence->cached_tokens, cached) << decode_from;
  }
}

// A preempted sequence begins anew: it finds its own blocks again, from the first on, and its
// request is not told that these had been cached.
TEST(SchedulerTest, APreemptedSequenceFindsItsPrefixAgain) {
  KvManager kv = OneGroup(6);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256}, kv);
  scheduler.Add(MakeSequence(9, 16, 1, 5));  // leaves one block of fives behind
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(1, 48, 40));
  scheduler.Add(MakeSequence(2, 32, 40, 5));
  FinishStep(scheduler, scheduler.Plan());  // three blocks and two, of which one was found
  Sequence& preempted = *scheduler.Find(2);
  EXPECT_EQ(preempted.cached_tokens, 16);
  EXPECT_EQ(preempted.blocks.sealed, 2);
  // The first takes the last block, the second finds none.
  auto plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 1}}));
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_TRUE(preempted.blocks.empty());
  EXPECT_EQ(preempted.computed_tokens, 0);
  EXPECT_EQ(preempted.blocks.sealed, 0);
  EXPECT_TRUE(preempted.blocks.tables.empty());
  FinishStep(scheduler, plan);
  // It wants three blocks, has two of them and there is no third.
  plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 1}}));
  EXPECT_EQ(kv.pool().used_blocks(), 4);  // what it found was given back
  EXPECT_TRUE(preempted.blocks.tables.empty());
  FinishStep(scheduler, plan);
  scheduler.Remove(scheduler.Find(1));
  plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{2, 1}}));
  EXPECT_EQ(preempted.computed_tokens, 32);
  EXPECT_EQ(preempted.cached_tokens, 16);  // as when it was admitted first
  FinishStep(scheduler, plan);
  while (!scheduler.empty()) FinishStep(scheduler, scheduler.Plan());
  // What it sealed after that is behind the right prefix.
  auto same = MakeSequence(3, 49, 1, 5);
  std::fill(same->tokens.begin() + 32, same->tokens.end(), 7);  // what these tests generate
  scheduler.Add(std::move(same));
  EXPECT_EQ(scheduler.Plan()[0].sequence->cached_tokens, 48);
}

// Of a sequence that left, the end of its prompt is overwritten first.
TEST(SchedulerTest, TheBeginningOfAPromptIsKeptLongest) {
  KvManager kv = OneGroup(5);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256}, kv);
  scheduler.Add(MakeSequence(1, 64, 1, 5));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(kv.pool().cached_blocks(), 4);
  scheduler.Add(MakeSequence(2, 48, 1));  // the block that is empty and two of the others
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(3, 64, 1, 5));
  EXPECT_EQ(scheduler.Plan()[0].sequence->cached_tokens, 32);
}

// The newest gives way first, and waits before those that have never run, in the old order.
TEST(SchedulerTest, PreemptedSequencesWaitInOrder) {
  KvManager kv = OneGroup(8);
  Scheduler scheduler({.max_num_seqs = 3, .max_batch_tokens = 256, .prefix_cache = false}, kv);
  scheduler.Add(MakeSequence(1, 64, 100));
  scheduler.Add(MakeSequence(2, 32, 100));
  scheduler.Add(MakeSequence(3, 32, 100));
  scheduler.Add(MakeSequence(4, 8, 100));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(kv.pool().free_blocks(), 0);
  // 1 wants a fifth block: 3 goes. 2 takes the block that is left. Nobody is admitted in a step
  // that has preempted, although 4 would fit.
  auto plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 1}, {2, 1}}));
  EXPECT_EQ(scheduler.waiting(), 2);
  FinishStep(scheduler, plan);
  // 1 grows on: its 80th token is the last of the block, then 2 goes as well.
  for (int64_t step = 0; scheduler.running() == 2; ++step) {
    ASSERT_LT(step, 100);
    plan = scheduler.Plan();
    FinishStep(scheduler, plan);
  }
  EXPECT_EQ(scheduler.preemptions(), 2);
  std::vector<RequestId> waiting;
  scheduler.ForEach([&](Sequence& sequence) { waiting.push_back(sequence.id); });
  EXPECT_EQ(waiting, (std::vector<RequestId>{1, 2, 3, 4}));
  // The head of the queue is not overtaken by what would fit.
  scheduler.Remove(scheduler.Find(1));
  plan = scheduler.Plan();
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].sequence->id, 2u);
  EXPECT_EQ(plan[1].sequence->id, 3u);
  EXPECT_EQ(plan[2].sequence->id, 4u);
}

// Who was preempted may find its whole prompt in blocks that another one still holds, and would fit
// at once: it waits for the next step all the same, as does everybody else.
TEST(SchedulerTest, NobodyIsAdmittedInAStepThatPreempts) {
  KvManager kv = OneGroup(4);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256}, kv);
  scheduler.Add(MakeSequence(1, 32, 40, 5));
  scheduler.Add(MakeSequence(2, 32, 40, 5));
  FinishStep(scheduler, scheduler.Plan());  // each computes the prompt, into two blocks of its own
  EXPECT_EQ(kv.pool().free_blocks(), 0);
  scheduler.Add(MakeSequence(3, 8, 1));
  auto plan = scheduler.Plan();
  EXPECT_EQ(Planned(plan), (Slices{{1, 1}}));
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_EQ(kv.pool().free_blocks(), 1);  // all that 2 lacks beside the two blocks of 1
  FinishStep(scheduler, plan);
  EXPECT_EQ(Planned(scheduler.Plan()), (Slices{{1, 1}, {2, 1}}));
  EXPECT_EQ(scheduler.Find(2)->computed_tokens, 32);
}

// Who is preempted by the plan that it is in gives its tokens back to the step.
TEST(SchedulerTest, APreemptedSliceIsNotPaidFor) {
  KvManager kv = OneGroup(5);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 40, .prefix_cache = false}, kv);
  scheduler.Add(MakeSequence(1, 16, 100));
  scheduler.Add(MakeSequence(2, 4, 100));
  scheduler.Add(MakeSequence(3, 20, 100));
  FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(kv.pool().free_blocks(), 1);
  // More tokens at once than a decode step has: the first wants three more blocks for 39 tokens.
  scheduler.Find(1)->tokens.resize(16 + 60, 7);
  scheduler.Find(2)->tokens.resize(4 + 3, 7);
  const auto plan = scheduler.Plan();
  // 3 is planned first, as a decode step; its token goes to 2 when it has made room for 1.
  EXPECT_EQ(Planned(plan), (Slices{{1, 39}, {2, 1}}));
  EXPECT_EQ(scheduler.preemptions(), 1);
}

// Where all layers have a window, a sequence is longer than what its group has blocks for: it holds
// those that the window reaches, and two run beside each other without a preemption.
TEST(SchedulerTest, BlocksBehindAWindowAreGivenBack) {
  constexpr int64_t kWindow = 40;
  constexpr int64_t kBatch = 32;
  constexpr int64_t kMost = (kWindow + kAttentionChunkTokens + kBatch) / kKvBlockTokens + 1;
  KvManager kv = WithWindows({kWindow}, 2 * kMost);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = kBatch}, kv);
  scheduler.Add(MakeSequence(1, 700, 500));
  scheduler.Add(MakeSequence(2, 20, 1500));
  int64_t most_used = 0;
  std::vector<RequestId> ended;
  for (int step = 0; step < 3000 && !scheduler.empty(); ++step) {
    for (const RequestId id : FinishStep(scheduler, scheduler.Plan())) ended.push_back(id);
    most_used = std::max(most_used, kv.pool().used_blocks());
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(scheduler.preemptions(), 0);
  EXPECT_GT(most_used, kMost);
  EXPECT_EQ(kv.pool().used_blocks(), 0);
  // What begins with the same tokens finds what is left of them, or computes it.
  scheduler.Add(MakeSequence(1, 700, 1));
  while (!scheduler.empty()) FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(kv.pool().used_blocks(), 0);
}

// What the tokens to come attend to has blocks.
void ExpectAttendedBlocks(const Sequence& sequence, const std::vector<int64_t>& windows) {
  ASSERT_EQ(sequence.blocks.tables.size(), windows.size());
  for (size_t g = 0; g < windows.size(); ++g) {
    const std::vector<int32_t>& blocks = sequence.blocks.tables[g].blocks;
    const int64_t first =
        windows[g] > 0 ? std::max<int64_t>(0, sequence.computed_tokens + 1 - windows[g]) : 0;
    ASSERT_EQ(std::count(blocks.begin() + first / kKvBlockTokens, blocks.end(),
                         SequenceBlocks::kGivenBack),
              0)
        << "group " << g;
  }
}

// Whatever arrives, whenever it is cancelled: every step stays in its limits, no block is shared by
// writers, everything ends, and no block is lost.
TEST(SchedulerTest, RandomWorkloadsKeepTheirPromises) {
  for (int round = 0; round < 40; ++round) {
    const auto seed = static_cast<uint32_t>(round * 7919 + 17);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto uniform = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const std::vector<int64_t> kinds[] = {{0}, {0, 20}, {40, 0, 0}, {24, 1}};
    const std::vector<int64_t>& windows = kinds[uniform(0, 1) * uniform(1, 3)];
    const int64_t blocks = std::ssize(windows) * uniform(6, uniform(0, 1) > 0 ? 40 : 60);
    KvManager kv = WithWindows(windows, blocks);
    SchedulerOptions options;
    options.max_num_seqs = uniform(1, 8);
    options.max_batch_tokens = uniform(8, 100);
    options.prefix_cache = uniform(0, 1) == 1;
    options.piece_tokens = uniform(0, 1) * uniform(8, 300);
    Scheduler scheduler(options, kv);
    RequestId next = 0;
    std::set<RequestId> alive;
    for (int step = 0; step < 3000; ++step) {
      if (next < 60 && uniform(0, 3) == 0) {
        const int64_t longest = kv.needs().Longest(blocks, options.max_batch_tokens, 640);
        const int64_t prompt = uniform(1, longest - 1);
        // A small alphabet makes prefixes collide.
        scheduler.Add(MakeSequence(++next, prompt, uniform(1, longest - prompt),
                                   static_cast<int32_t>(uniform(0, 2))));
        alive.insert(next);
      }
      if (!alive.empty() && uniform(0, 40) == 0) {
        const RequestId id = *alive.begin();
        scheduler.Remove(scheduler.Find(id));
        alive.erase(id);
      }
      if (scheduler.piece().empty()) {
        scheduler.PlanPiece([&](int64_t) { return uniform(0, 2) > 0; });
      } else if (uniform(0, 3) == 0) {
        std::vector<Sequence*> computed;
        for (const ScheduledSlice& slice : scheduler.piece()) computed.push_back(slice.sequence);
        scheduler.AdvancePiece();
        for (Sequence* const s : computed) {
          if (s->computed_tokens < std::ssize(s->tokens)) continue;
          s->tokens.push_back(7);
          if (s->output_tokens() < s->request.max_tokens) continue;
          alive.erase(s->id);
          scheduler.Remove(s);
        }
      }
      const auto plan = scheduler.Plan();
      ASSERT_EQ(plan.empty() && scheduler.piece().empty(), scheduler.empty());
      for (const ScheduledSlice& slice : scheduler.piece()) {
        const Sequence& s = *slice.sequence;
        ASSERT_GE(s.blocks.covered() * kKvBlockTokens, s.computed_tokens + slice.num_tokens);
        ASSERT_LE(s.computed_tokens + slice.num_tokens, std::ssize(s.tokens));
        for (const ScheduledSlice& other : plan) ASSERT_NE(other.sequence, slice.sequence);
      }
      int64_t tokens = 0;
      std::set<int32_t> written;
      for (const ScheduledSlice& slice : plan) {
        tokens += slice.num_tokens;
        const Sequence& s = *slice.sequence;
        ASSERT_GE(s.blocks.covered() * kKvBlockTokens, s.computed_tokens + slice.num_tokens);
        ASSERT_LE(s.computed_tokens + slice.num_tokens, static_cast<int64_t>(s.tokens.size()));
        for (int64_t p = s.computed_tokens; p < s.computed_tokens + slice.num_tokens; p += 1) {
          if (p != s.computed_tokens && p % kKvBlockTokens != 0) continue;
          for (const SequenceBlocks::Table& table : s.blocks.tables) {
            ASSERT_TRUE(
                written.insert(table.blocks[static_cast<size_t>(p / kKvBlockTokens)]).second);
          }
        }
      }
      for (const auto& slices : {plan, scheduler.piece()}) {
        for (const ScheduledSlice& slice : slices) ExpectAttendedBlocks(*slice.sequence, windows);
      }
      ASSERT_LE(tokens, options.max_batch_tokens);
      ASSERT_LE(scheduler.running(), options.max_num_seqs);
      for (const RequestId id : FinishStep(scheduler, plan)) alive.erase(id);
      if (next >= 60 && scheduler.empty()) break;
    }
    EXPECT_TRUE(scheduler.empty());
    EXPECT_TRUE(alive.empty());
    EXPECT_EQ(kv.pool().used_blocks(), 0);
  }
}

TEST(SchedulerTest, TheBackgroundRestsWhileOthersAreThere) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(InBackground(MakeSequence(1, 8, 4)));
  scheduler.Add(InBackground(MakeSequence(2, 8, 4)));
  auto plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{1, 2}));
  FinishStep(scheduler, plan);
  scheduler.Add(MakeSequence(3, 8, 2));
  plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{3}));
  EXPECT_EQ(scheduler.running(), 3);  // the others keep what they have
  FinishStep(scheduler, plan);
  scheduler.Add(InBackground(MakeSequence(4, 8, 4)));
  plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{3}));
  EXPECT_EQ(FinishStep(scheduler, plan), (std::vector<RequestId>{3}));
  plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{1, 2, 4}));
  EXPECT_EQ(plan[0].num_tokens, 1);  // nothing is computed again
  EXPECT_EQ(scheduler.preemptions(), 0);
}

TEST(SchedulerTest, OthersGoBeforeTheBackgroundThatWaits) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 1, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(InBackground(MakeSequence(1, 8, 1)));
  scheduler.Add(InBackground(MakeSequence(2, 8, 1)));
  scheduler.Add(MakeSequence(3, 8, 1));
  scheduler.Add(MakeSequence(4, 8, 1));
  std::vector<RequestId> order;
  while (!scheduler.empty()) {
    const auto plan = scheduler.Plan();
    ASSERT_EQ(plan.size(), 1u);
    for (const RequestId id : FinishStep(scheduler, plan)) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{3, 4, 1, 2}));
}

TEST(SchedulerTest, TheBackgroundGivesUpItsPlaces) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(InBackground(MakeSequence(1, 8, 9)));
  scheduler.Add(InBackground(MakeSequence(2, 8, 9)));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(3, 8, 9));
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{3}));
  EXPECT_EQ(scheduler.running(), 2);  // the newest one has gone, no more
  ASSERT_EQ(scheduler.displaced().size(), 1u);
  EXPECT_EQ(scheduler.displaced()[0], scheduler.Find(2));
  EXPECT_EQ(scheduler.preemptions(), 1);
  EXPECT_EQ(scheduler.Find(2)->computed_tokens, 0);
  EXPECT_EQ(scheduler.Find(1)->computed_tokens, 8);
}

TEST(SchedulerTest, TheBackgroundGivesUpItsBlocks) {
  KvManager kv = OneGroup(6);
  Scheduler scheduler({.max_num_seqs = 8, .max_batch_tokens = 64, .prefix_cache = false}, kv);
  for (RequestId id = 1; id <= 3; ++id) {
    scheduler.Add(InBackground(MakeSequence(id, kKvBlockTokens * 2 - 2, 9)));
  }
  while (scheduler.Find(3)->computed_tokens <= kKvBlockTokens) {
    FinishStep(scheduler, scheduler.Plan());
  }
  ASSERT_EQ(kv.pool().free_blocks(), 0);
  // Three blocks: two of the background leave to let it in.
  scheduler.Add(MakeSequence(4, kKvBlockTokens * 3 - 1, 20));
  auto plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{4}));
  EXPECT_EQ(scheduler.preemptions(), 2);
  EXPECT_GT(scheduler.Find(1)->computed_tokens, 0);
  // It grows beyond what is free: the last one leaves, too.
  while (scheduler.Find(4) != nullptr) {
    plan = scheduler.Plan();
    EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{4}));
    FinishStep(scheduler, plan);
  }
  EXPECT_EQ(IdsOf(scheduler.Plan()).front(), 1u);
}

// With others coming and going every request ends, and a plan never mixes both kinds.
TEST(SchedulerTest, BothKindsEnd) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    KvManager kv = OneGroup(8);
    Scheduler scheduler({.max_num_seqs = 3, .max_batch_tokens = 24, .prefix_cache = round % 2 == 0},
                        kv);
    RequestId next = 0;
    std::set<RequestId> open;
    for (int step = 0; step < 400 || !open.empty(); ++step) {
      ASSERT_LT(step, 5000);
      if (step < 400 && random() % 8 == 0 && open.size() < 12) {
        auto sequence = MakeSequence(++next, 1 + static_cast<int64_t>(random() % 60),
                                     1 + static_cast<int64_t>(random() % 40));
        sequence->request.background = random() % 2 == 0;
        open.insert(next);
        scheduler.Add(std::move(sequence));
      }
      const auto plan = scheduler.Plan();
      ASSERT_EQ(plan.empty(), scheduler.empty());
      for (const ScheduledSlice& slice : plan) {
        ASSERT_EQ(slice.sequence->request.background, plan[0].sequence->request.background);
      }
      for (const RequestId id : FinishStep(scheduler, plan)) open.erase(id);
    }
    EXPECT_EQ(kv.pool().used_blocks(), 0);
  }
}

TEST(SchedulerTest, LowerPrioritiesAreAdmittedFirst) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 1, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(WithPriority(3, MakeSequence(1, 8, 1)));
  scheduler.Add(InBackground(WithPriority(-7, MakeSequence(2, 8, 1))));
  scheduler.Add(MakeSequence(3, 8, 1));
  scheduler.Add(WithPriority(-1, MakeSequence(4, 8, 1)));
  std::vector<RequestId> order;
  while (!scheduler.empty()) {
    for (const RequestId id : FinishStep(scheduler, scheduler.Plan())) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{4, 3, 1, 2}));
  EXPECT_EQ(scheduler.preemptions(), 0);
}

TEST(SchedulerTest, LowerPrioritiesTakePlaces) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  scheduler.Add(WithPriority(1, MakeSequence(1, 8, 9)));
  scheduler.Add(MakeSequence(2, 8, 9));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(3, 8, 9));
  scheduler.Add(MakeSequence(4, 8, 9));
  // The first one, which was planned already, is not paid for; the last one is not worth a place.
  const auto plan = scheduler.Plan();
  EXPECT_EQ(IdsOf(plan), (std::vector<RequestId>{2, 3}));
  EXPECT_EQ(plan[1].num_tokens, 8);
  EXPECT_EQ(scheduler.running(), 2);
  ASSERT_EQ(scheduler.displaced().size(), 1u);
  EXPECT_EQ(scheduler.displaced()[0], scheduler.Find(1));
  FinishStep(scheduler, plan);
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{2, 3}));
  EXPECT_TRUE(scheduler.displaced().empty());
  scheduler.Remove(scheduler.Find(2));
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{3, 4}));
}

TEST(SchedulerTest, HigherPrioritiesArePreemptedFirst) {
  KvManager kv = OneGroup(4);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = 64, .prefix_cache = false}, kv);
  scheduler.Add(WithPriority(1, MakeSequence(1, kKvBlockTokens, 20)));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(2, kKvBlockTokens, 20));
  while (kv.pool().free_blocks() > 0) FinishStep(scheduler, scheduler.Plan());
  ASSERT_EQ(scheduler.running(), 2);
  while (scheduler.Find(1)->computed_tokens > 0) FinishStep(scheduler, scheduler.Plan());
  EXPECT_GT(scheduler.Find(2)->computed_tokens, kKvBlockTokens);
  // Who is preempted and waits next has its place: nobody else has begun.
  EXPECT_TRUE(scheduler.displaced().empty());
  while (scheduler.Find(2) != nullptr) FinishStep(scheduler, scheduler.Plan());
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{1}));
  scheduler.Add(MakeSequence(3, 4, 1));
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{1, 3}));
  EXPECT_TRUE(scheduler.displaced().empty());
}

TEST(SchedulerTest, LowerPrioritiesTakeBlocks) {
  KvManager kv = OneGroup(8);
  Scheduler scheduler({.max_num_seqs = 4, .max_batch_tokens = 256, .prefix_cache = false}, kv);
  scheduler.Add(WithPriority(1, MakeSequence(1, kKvBlockTokens * 6 - 1, 3)));
  FinishStep(scheduler, scheduler.Plan());
  scheduler.Add(MakeSequence(2, kKvBlockTokens * 3 - 1, 1));
  scheduler.Add(WithPriority(2, MakeSequence(3, 4, 1)));
  EXPECT_EQ(IdsOf(scheduler.Plan()), (std::vector<RequestId>{2}));
  EXPECT_EQ(scheduler.preemptions(), 1);
}

// However they come and go, no more sequences have begun than may run.
TEST(SchedulerTest, PrioritiesKeepThePlacesOfThoseThatBegan) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    KvManager kv = OneGroup(8);
    Scheduler scheduler({.max_num_seqs = 3, .max_batch_tokens = 24, .prefix_cache = round % 2 == 0},
                        kv);
    RequestId next = 0;
    std::set<RequestId> open;
    std::set<RequestId> begun;
    for (int step = 0; step < 300 || !open.empty(); ++step) {
      ASSERT_LT(step, 5000);
      if (step < 300 && random() % 6 == 0 && open.size() < 12) {
        auto sequence = MakeSequence(++next, 1 + static_cast<int64_t>(random() % 60),
                                     1 + static_cast<int64_t>(random() % 40));
        sequence->request.background = random() % 4 == 0;
        sequence->request.priority = static_cast<int32_t>(random() % 3);
        open.insert(next);
        scheduler.Add(std::move(sequence));
      }
      const auto plan = scheduler.Plan();
      ASSERT_EQ(plan.empty(), scheduler.empty());
      for (const Sequence* displaced : scheduler.displaced()) begun.erase(displaced->id);
      for (const RequestId id : IdsOf(plan)) begun.insert(id);
      ASSERT_LE(begun.size(), 3u);
      for (const RequestId id : FinishStep(scheduler, plan)) {
        open.erase(id);
        begun.erase(id);
      }
    }
    EXPECT_EQ(kv.pool().used_blocks(), 0);
  }
}

// A client's long prompts are not in the way of another's short ones, and what is computed again
// is not charged again.
TEST(SchedulerTest, ClientsAreAdmittedInTurn) {
  KvManager kv = OneGroup(64);
  Scheduler scheduler({.max_num_seqs = 1, .max_batch_tokens = 32, .prefix_cache = false}, kv);
  const auto of = [](const char* client, RequestId id, int64_t prompt) {
    auto sequence = MakeSequence(id, prompt, 1);
    sequence->request.client = client;
    return sequence;
  };
  for (RequestId id = 1; id <= 3; ++id) scheduler.Add(of("a", id, 100));
  for (RequestId id = 4; id <= 8; ++id) scheduler.Add(of("b", id, 30));
  std::vector<RequestId> order;
  while (!scheduler.empty()) {
    for (const RequestId id : FinishStep(scheduler, scheduler.Plan())) order.push_back(id);
  }
  // 100 for a; 30, 60, 90, 120 for b; 200 for a; 150 for b.
  EXPECT_EQ(order, (std::vector<RequestId>{1, 4, 5, 6, 7, 2, 8, 3}));
}

// A sequence that runs on and on takes the blocks that its window gave back, of others too: their
// prefixes are found as long as the ends of their windows are there.
TEST(SchedulerTest, APrefixIsFoundByTheEndOfItsWindows) {
  KvManager kv = WithWindows({16, 0}, 64);
  Scheduler scheduler({.max_num_seqs = 2, .max_batch_tokens = 64, .prefix_cache = true}, kv);
  const auto run = [&] {
    while (!scheduler.empty()) FinishStep(scheduler, scheduler.Plan());
  };
  scheduler.Add(MakeSequence(1, 400, 1));  // 25 blocks of each group
  run();
  EXPECT_EQ(kv.pool().cached_blocks(), 50);
  // Takes the 14 that hold nothing and 10 that were behind the first one's window.
  scheduler.Add(MakeSequence(2, 12 * kKvBlockTokens - 1, 1));
  run();
  auto again = MakeSequence(1, 401, 2);
  again->id = 3;
  scheduler.Add(std::move(again));
  const auto plan = scheduler.Plan();
  ASSERT_EQ(IdsOf(plan), (std::vector<RequestId>{3}));
  EXPECT_EQ(plan[0].sequence->cached_tokens, 400);
  EXPECT_EQ(plan[0].num_tokens, 1);
  run();
  EXPECT_EQ(scheduler.preemptions(), 0);
  EXPECT_EQ(kv.pool().used_blocks(), 0);
}

}  // namespace
}  // namespace moesaic
