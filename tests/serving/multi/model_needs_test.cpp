#include "serving/multi/model_needs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/online/engine_plan.h"
#include "serving/startup/machine_options.h"
#include "tests/core/base/caught.h"
#include "tests/serving/startup/made_up_machine.h"

namespace moesaic {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

EngineOptions SmallEngine() {
  EngineOptions options;
  options.machine.threads = 2;
  options.max_model_len = 1024;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  return options;
}

std::vector<ModelEntry> Entries(const EngineOptions& options = SmallEngine()) {
  const std::string models = MOESAIC_TEST_DATA_DIR "/models/";
  std::vector<ModelEntry> entries =
      EntriesOf({MOESAIC_SAMPLE_MODEL_DIR, models + "olmoe_bf16_clip", models + "gpt_oss_mxfp4"},
                options, {});
  PrepareEntries(entries);
  return entries;
}

EnginePlan PlanWith(const ModelEntry& entry, uint64_t bytes, const Machine& machine) {
  EngineOptions options = OptionsOnMachine(entry.engine, machine);
  options.machine_memory_bytes = bytes;
  return PlanEngine(options);
}

TEST(ModelNeedsTest, TheLeastHoldsTheFloorAndTheMostAllExperts) {
  const Machine machine = MadeUpMachine();
  std::vector<ModelEntry> entries = Entries();
  entries[0].min_experts = "50%";
  const ModelNeed need = NeedOf(entries[0], machine);
  const EnginePlan least = PlanWith(entries[0], need.memory.least_bytes, machine);
  EXPECT_GE(least.expert_budget_bytes, least.all_experts_bytes / 2);
  EXPECT_LT(least.expert_budget_bytes, least.all_experts_bytes);
  EXPECT_EQ(SumOf(need.least), least.ledger.total_bytes());
  // Not much less would do.
  try {
    const EnginePlan less = PlanWith(entries[0], need.memory.least_bytes - 2 * kMebibyte, machine);
    EXPECT_LT(less.expert_budget_bytes, less.all_experts_bytes / 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
  }
  const EnginePlan most = PlanWith(entries[0], need.memory.most_bytes, machine);
  EXPECT_EQ(most.expert_budget_bytes, most.all_experts_bytes);
}

// Where memory moves there is a predictor even when all experts are there. It has memory of its own
// then, and the model has no more than it needs.
TEST(ModelNeedsTest, AFloorOfAllExpertsIsReachedBesideThePredictor) {
  const Machine machine = MadeUpMachine();
  std::vector<ModelEntry> entries = Entries();
  ModelEntry& entry = entries[0];
  entry.engine.predictor = "frequency";
  entry.engine.kv_memory = "4MiB";  // else a share of what is left
  entry.engine.most_expert_bytes = 1024 * kMebibyte;
  entry.min_experts = "100%";
  const ModelNeed need = NeedOf(entry, machine);
  const EnginePlan least = PlanWith(entry, need.memory.least_bytes, machine);
  EXPECT_GT(least.predictor_bytes, 0u);
  EXPECT_EQ(least.expert_budget_bytes, least.all_experts_bytes);
  EXPECT_LE(need.memory.least_bytes, least.ledger.total_bytes() + kMebibyte);
  EXPECT_EQ(need.memory.most_bytes, need.memory.least_bytes);
  EXPECT_LT(PlanWith(entry, least.ledger.total_bytes() - least.slot_bytes, machine).expert_slots,
            least.expert_slots);
}

TEST(ModelNeedsTest, ModelsOfTheStartShareWhatALaterOneLeaves) {
  const Machine machine = MadeUpMachine();  // a gibibyte
  std::vector<ModelEntry> entries = Entries();
  entries[2].load = LoadTime::kDemand;
  const ModelsPlan plan = PlanModels(entries, machine, 100 * kMebibyte);
  EXPECT_EQ(plan.memory_bytes, 1024 * kMebibyte - 100 * kMebibyte);
  ASSERT_EQ(plan.start_shares.size(), 3u);
  EXPECT_EQ(plan.start_shares[2], 0u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GE(plan.start_shares[i], plan.needs[i].memory.least_bytes);
    EXPECT_NO_THROW(PlanWith(entries[i], plan.start_shares[i], machine));
  }
  EXPECT_LE(plan.start_shares[0] + plan.start_shares[1],
            plan.memory_bytes - plan.needs[2].memory.least_bytes);
}

TEST(ModelNeedsTest, WhatDoesNotFitIsRefusedWithTheLedger) {
  Machine machine = MadeUpMachine();
  std::vector<ModelEntry> entries = Entries();
  const Error error = Caught([&] { PlanModels(entries, machine, 900 * kMebibyte); });
  EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
  for (const char* part : {"--memory", "load: demand", "min-experts", "models/sample: expert cache",
                           "olmoe_bf16_clip: dense weights", "missing"}) {
    EXPECT_TRUE(Contains(error, part)) << part << "\n" << error.what();
  }
  // Another one may never be loaded.
  entries = Entries();
  for (ModelEntry& entry : entries) entry.load = LoadTime::kDemand;
  entries[1].engine.kv_memory = "990MiB";
  const Error later = Caught([&] { PlanModels(entries, machine, 0); });
  EXPECT_TRUE(Contains(later, "argument 2")) << later.what();
  EXPECT_TRUE(Contains(later, "KV cache")) << later.what();
}

TEST(ModelNeedsTest, AnExpertMemoryInBytesIsOnePool) {
  const Machine machine = MadeUpMachine();
  EngineOptions options = SmallEngine();
  options.expert_memory = "6MiB";
  std::vector<ModelEntry> entries = Entries(options);
  entries.pop_back();
  PlanModels(entries, machine, 0);
  uint64_t sum = 0;
  for (const ModelEntry& entry : entries) {
    const EnginePlan plan = PlanWith(entry, 1024 * kMebibyte, machine);
    EXPECT_GE(plan.expert_slots, 1);
    sum += plan.expert_budget_bytes;
  }
  EXPECT_LE(sum, 6 * kMebibyte);
  EXPECT_GT(sum, 5 * kMebibyte);

  entries = Entries(options);
  for (ModelEntry& entry : entries) entry.min_experts = "90%";
  const Error error = Caught([&] { PlanModels(entries, machine, 0); });
  EXPECT_TRUE(Contains(error, "--expert-memory 6MiB")) << error.what();
  EXPECT_TRUE(Contains(error, "min-experts")) << error.what();
}

}  // namespace
}  // namespace moesaic
