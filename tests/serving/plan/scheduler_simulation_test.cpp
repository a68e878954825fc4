#include "serving/plan/scheduler_simulation.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

struct ScheduledRun {
  SchedulerResult result;
  std::vector<IterationLoad> loads;
};

ScheduledRun RunScheduler(const std::vector<RequestLengths>& requests,
                          const SchedulerLimits& limits) {
  ScheduledRun recorded;
  recorded.result = SimulateScheduler(requests, limits, [&](const IterationLoad& load) {
    recorded.loads.push_back(load);
    return 1.0;
  });
  return recorded;
}

TEST(SchedulerSimulationTest, PrefillsThenDecodesEachToken) {
  const ScheduledRun run = RunScheduler({{10, 4}}, {10, 4, 100});
  ASSERT_EQ(run.loads.size(), 4u);  // the prefill gives the first token
  EXPECT_EQ(run.loads[0].prefill_tokens, 10);
  EXPECT_EQ(run.loads[0].prefill_positions, 55);
  EXPECT_EQ(run.loads[1].decode_sequences, 1);
  EXPECT_EQ(run.loads[1].decode_context, 11);
  EXPECT_EQ(run.loads[3].decode_context, 13);
  EXPECT_EQ(run.result.generated_tokens, 4);
  EXPECT_EQ(run.result.most_blocks, 4);
}

TEST(SchedulerSimulationTest, BudgetIsSharedByDecodeAndPrefill) {
  SchedulerLimits limits{100, 4, 12};
  const ScheduledRun run = RunScheduler({{10, 5}, {10, 5}, {20, 2}}, limits);
  EXPECT_EQ(run.loads[0].prefill_tokens, 10);
  EXPECT_EQ(run.loads[1].decode_sequences, 1);
  EXPECT_EQ(run.loads[1].prefill_tokens, 10);
  // The prompt beyond the budget waits until nothing else runs, then runs alone.
  bool alone = false;
  for (const IterationLoad& load : run.loads) {
    if (load.prefill_tokens != 20) continue;
    alone = load.decode_sequences == 0;
  }
  EXPECT_TRUE(alone);
  EXPECT_EQ(run.result.generated_tokens, 12);
}

TEST(SchedulerSimulationTest, NewestLeaveFirstAndComeBackAsPrompts) {
  // 6 blocks of 2 tokens: both prompts take 2 each, and grow until one has to go.
  const ScheduledRun run = RunScheduler({{4, 6}, {4, 6}}, {6, 2, 100});
  EXPECT_GE(run.result.preemptions, 1);
  EXPECT_EQ(run.result.generated_tokens, 12);
  // The newer one leaves with 6 tokens in its blocks, which are computed again.
  EXPECT_EQ(run.result.prefill_tokens, 4 + 4 + 6);
  EXPECT_LE(run.result.most_blocks, 6);
}

TEST(SchedulerSimulationTest, BudgetAndBlocksMayBeMetExactly) {
  const ScheduledRun run = RunScheduler({{8, 1}, {8, 1}}, {4, 4, 16});
  ASSERT_EQ(run.loads.size(), 1u);
  EXPECT_EQ(run.loads[0].prefill_tokens, 16);
  EXPECT_EQ(run.result.most_blocks, 4);
}

TEST(SchedulerSimulationTest, WholeBatchesDoNotMix) {
  SchedulerLimits limits{8, 4, 8};
  limits.whole_batches = true;
  const ScheduledRun run = RunScheduler({{6, 3}, {6, 2}, {6, 3}, {6, 3}}, limits);
  for (const IterationLoad& load : run.loads) {
    EXPECT_TRUE(load.prefill_tokens == 0 || load.decode_sequences == 0);
  }
  EXPECT_EQ(run.result.preemptions, 0);
  EXPECT_EQ(run.result.generated_tokens, 11);
  // Batches of 3 + 2 and 3 blocks reserved: two prefills of one prompt each, decode, and so on.
  EXPECT_EQ(run.loads[0].prefill_tokens, 6);
  EXPECT_EQ(run.loads[1].prefill_tokens, 6);
}

TEST(SchedulerSimulationTest, ARequestThatCanNeverFitIsRefused) {
  EXPECT_THROW(RunScheduler({{40, 4}}, {10, 4, 100}), Error);
}

TEST(SchedulerSimulationTest, RandomJobsKeepTheInvariants) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    std::vector<RequestLengths> requests;
    int64_t generated = 0;
    int64_t prompts = 0;
    for (int64_t i = draw(1, 60); i > 0; --i) {
      requests.push_back({draw(1, 40), draw(1, 30)});
      generated += requests.back().generated_tokens;
      prompts += requests.back().prompt_tokens;
    }
    SchedulerLimits limits{draw(70, 200), draw(1, 16), draw(8, 200), draw(0, 20)};
    limits.whole_batches = draw(0, 1) == 1;
    const ScheduledRun run = RunScheduler(requests, limits);
    EXPECT_EQ(run.result.generated_tokens, generated) << "seed " << seed;
    EXPECT_GE(run.result.prefill_tokens, prompts) << "seed " << seed;
    EXPECT_LE(run.result.most_blocks, limits.kv_blocks) << "seed " << seed;
    if (limits.most_sequences > 0) {
      EXPECT_LE(run.result.most_decoding, limits.most_sequences) << "seed " << seed;
    }
    if (limits.whole_batches || run.result.preemptions == 0) {
      EXPECT_EQ(run.result.prefill_tokens, prompts) << "seed " << seed;
    }
  }
}

SchedulerLimits Chunked(int64_t blocks, int64_t budget, int64_t most_sequences = 0) {
  SchedulerLimits limits{blocks, 4, budget, most_sequences};
  limits.chunked_prefill = true;
  return limits;
}

TEST(SchedulerSimulationTest, ChunksUseTheWholeBudget) {
  const ScheduledRun run = RunScheduler({{10, 3}, {10, 3}}, Chunked(100, 8));
  ASSERT_GE(run.loads.size(), 4u);
  EXPECT_EQ(run.loads[0].prefill_tokens, 8);
  EXPECT_EQ(run.loads[0].prefill_positions, 36);
  EXPECT_EQ(run.loads[0].prompts_ended, 0);
  // The rest of the first prompt, then the second one's beginning.
  EXPECT_EQ(run.loads[1].prefill_tokens, 8);
  EXPECT_EQ(run.loads[1].prompts_ended, 1);
  EXPECT_EQ(run.loads[1].prefill_positions, 9 + 10 + 21);
  EXPECT_EQ(run.loads[2].decode_sequences, 1);
  EXPECT_EQ(run.loads[2].decode_context, 11);
  EXPECT_EQ(run.loads[2].prefill_tokens, 4);
  EXPECT_EQ(run.result.generated_tokens, 6);
}

TEST(SchedulerSimulationTest, ChunkedRunsConserveTokens) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<RequestLengths> requests;
    int64_t prompts = 0;
    int64_t generated = 0;
    for (int i = 0; i < 30; ++i) {
      const RequestLengths request{1 + static_cast<int64_t>(random() % 40),
                                   1 + static_cast<int64_t>(random() % 30)};
      prompts += request.prompt_tokens;
      generated += request.generated_tokens;
      requests.push_back(request);
    }
    const auto limits =
        Chunked(18 + static_cast<int64_t>(random() % 60), 1 + static_cast<int64_t>(random() % 64),
                static_cast<int64_t>(random() % 12));
    const ScheduledRun run = RunScheduler(requests, limits);
    EXPECT_EQ(run.result.generated_tokens, generated);
    EXPECT_LE(run.result.most_blocks, limits.kv_blocks);
    int64_t computed = 0;
    for (const IterationLoad& load : run.loads) {
      EXPECT_LE(load.prefill_tokens + load.decode_sequences, limits.token_budget);
      computed += load.prefill_tokens + load.decode_sequences;
    }
    // Each token but the last of each request once, and again what preemption took.
    const int64_t least = prompts + generated - 30;
    EXPECT_GE(computed, least);
    if (run.result.preemptions == 0) {
      EXPECT_EQ(computed, least);
    }
  }
}

}  // namespace
}  // namespace moesaic
