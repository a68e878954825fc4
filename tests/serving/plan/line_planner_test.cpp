// Sizes of a server's module batches of lines, from module costs that are made up.
#include "serving/plan/line_planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "serving/online/model_files.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// Experts that take longer to read than to compute, or not.
ModuleCosts CostsOf(double link_bytes_per_s) {
  ModuleCosts costs;
  for (ModuleCost& cost : costs.modules) cost = {1e-5, 1e-6, 0.01, 10, ""};
  costs[Module::kDecodeAttention] = costs[Module::kPrefillAttention] = {0, 1e-9, 0.01, 10, ""};
  costs.link = {link_bytes_per_s, link_bytes_per_s, link_bytes_per_s, "byte/s", "", ""};
  costs.contended_link_share = {1, 1, 1, "share", "", ""};
  costs.contended_compute_share = {0.9, 0.9, 0.9, "share", "", ""};
  costs.host_copy = {5e9, 5e9, 5e9, "byte/s", "", ""};
  costs.cores = 2;
  return costs;
}

constexpr double kSlow = 2e7;
constexpr double kFast = 2e10;

// A quarter of the experts, and memory for everything else.
EngineOptions ServerOptions() {
  EngineOptions options = SmallOptions();
  options.serves_batches = true;
  options.predictor = "none";
  options.prefill_order = PrefillOrder::kChunks;
  options.expert_memory = "25%";
  options.kv_memory = "512MiB";
  options.max_model_len = 1024;
  options.machine_memory_bytes = uint64_t{2} << 30;
  return options;
}

class LinePlannerTest : public testing::Test {
 protected:
  PlannedLines Plan(const EngineOptions& options, double link_bytes_per_s) const {
    return PlanLines(options, files_.config, PlanEngine(options, files_),
                     CostsOf(link_bytes_per_s));
  }
  double Predict(const EngineOptions& options, double link_bytes_per_s, int64_t lines,
                 int64_t tokens) const {
    return PredictLines(options, files_.config, PlanEngine(options, files_),
                        CostsOf(link_bytes_per_s), lines, tokens);
  }
  const ModelFiles files_ = OpenModelFiles(ServerOptions());
};

TEST_F(LinePlannerTest, ASlowDiskIsReadForMoreLinesAtOnce) {
  const EngineOptions options = ServerOptions();
  const PlannedLines slow = Plan(options, kSlow);
  const PlannedLines fast = Plan(options, kFast);
  EXPECT_GT(slow.tokens, fast.tokens);
  EXPECT_GT(slow.sequences, fast.sequences);
  EXPECT_LT(slow.tokens_per_s, fast.tokens_per_s);
  // By rule it would be four times what a step has.
  EXPECT_GT(slow.tokens, 4 * options.max_num_batched_tokens);
  EXPECT_GT(slow.tokens_per_s, 1.5 * Predict(options, kSlow, 4 * options.max_num_seqs,
                                             4 * options.max_num_batched_tokens));
}

TEST_F(LinePlannerTest, OfSizesThatAreAboutAsFastTheSmallestIsTaken) {
  const EngineOptions options = ServerOptions();
  for (const double link : {kSlow, kFast}) {
    const PlannedLines plan = Plan(options, link);
    const int64_t most_tokens = PlanEngine(options, files_).module_batches.most_tokens;
    EXPECT_LE(plan.tokens, most_tokens);
    double best = 0;
    for (int64_t lines = options.max_num_seqs; lines <= 16 * options.max_num_seqs; lines *= 2) {
      for (int64_t tokens = options.max_num_batched_tokens;
           tokens <= std::min(most_tokens, 16 * options.max_num_batched_tokens); tokens *= 2) {
        const double rate = Predict(options, link, lines, tokens);
        best = std::max(best, rate);
        if (tokens < plan.tokens) {
          EXPECT_LT(rate, plan.tokens_per_s);
        }
      }
    }
    EXPECT_GE(plan.tokens_per_s, 0.97 * best);
  }
}

TEST_F(LinePlannerTest, WhatIsGivenIsKept) {
  EngineOptions options = ServerOptions();
  options.batch_num_seqs = 7;
  options.batch_num_batched_tokens = 300;
  const PlannedLines plan = Plan(options, kSlow);
  EXPECT_EQ(plan.sequences, 7);
  EXPECT_EQ(plan.tokens, 300);
  EXPECT_EQ(PlanEngine(options, files_).module_batches.tokens, 300);
  options.batch_num_batched_tokens = 5;  // less than a step has
  EXPECT_EQ(PlanEngine(options, files_).module_batches.tokens, options.max_num_batched_tokens);
}

// Rows of many tokens take what is left beyond all experts, not experts' memory.
TEST_F(LinePlannerTest, NothingIsReadWhileMemoryIsLeftBeyondAllExperts) {
  EngineOptions options = ServerOptions();
  options.expert_memory = "auto";
  const int64_t tokens = 16 * options.max_num_batched_tokens;
  const auto slow_over_fast = [&] {
    return Predict(options, kSlow, 16, tokens) / Predict(options, kFast, 16, tokens);
  };
  EXPECT_EQ(slow_over_fast(), 1);
  // With memory for less than all experts and these rows.
  const EnginePlan plan = PlanEngine(options, files_);
  options.machine_memory_bytes -= plan.unused_bytes;
  EXPECT_LT(slow_over_fast(), 1);
}

// Lines without room for their keys and values would only push each other out.
TEST_F(LinePlannerTest, NoMoreLinesThanKeysAndValuesHaveRoomFor) {
  EngineOptions options = ServerOptions();
  const PlannedLines roomy = Plan(options, kSlow);
  options.kv_memory = "24MiB";
  options.max_model_len = 0;
  const PlannedLines narrow = Plan(options, kSlow);
  EXPECT_LT(narrow.sequences, roomy.sequences);
  EXPECT_LT(narrow.tokens_per_s, roomy.tokens_per_s);
}

}  // namespace
}  // namespace moesaic
