// The configurations of published models (tests/data/published) are described and planned without
// their weights, and have as many parameters as their makers say.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "serving/cli/model_summary.h"
#include "serving/online/engine_plan.h"
#include "serving/startup/machine_options.h"
#include "tests/serving/startup/made_up_machine.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

struct Published {
  const char* name;
  double total;   // 1e9 parameters, as their makers say
  double active;  // likewise, of one token, with the embedding and the output matrix
  int64_t experts;
  const char* weights;  // in memory, unless something else is asked for
};

constexpr Published kPublished[] = {
    {"arctic", 479, 17.3, 35 * 128, "bf16"},
    {"dbrx", 132, 36.5, 40 * 16, "bf16"},
    {"deepseek-v2", 236, 21, 59 * 160, "bf16"},
    {"deepseek-v2-lite", 15.7, 2.7, 26 * 64, "bf16"},
    {"deepseek-v3", 671, 37.6, 58 * 256, "fp8"},
    {"deepseek-v3.2", 671, 37.6, 58 * 256, "fp8"},
    {"glm-4.5", 353, 33.6, 89 * 160, "bf16"},
    {"glm-4.5-air", 106.9, 13.2, 45 * 128, "bf16"},
    {"glm-4.6", 353, 33.6, 89 * 160, "bf16"},
    {"glm-4.7-flash", 29.9, 3.9, 46 * 64, "bf16"},
    {"glm-5", 744, 40, 75 * 256, "bf16"},
    {"gpt-oss-120b", 116.8, 5.7, 36 * 128, "mxfp4"},
    {"gpt-oss-20b", 20.9, 4.2, 24 * 32, "mxfp4"},
    {"granite-3.1-1b-a400m", 1.33, 0.43, 24 * 32, "bf16"},
    {"granite-3.1-3b-a800m", 3.3, 0.88, 32 * 40, "bf16"},
    {"kimi-k2", 1026, 32.9, 60 * 384, "fp8"},
    {"kimi-k2-thinking", 1026, 32.9, 60 * 384, "w4a16"},
    {"kimi-k2.5", 1026, 32.9, 60 * 384, "w4a16"},
    {"minimax-m2", 228.7, 11.0, 62 * 256, "fp8"},
    {"mixtral-8x7b", 46.7, 12.9, 32 * 8, "bf16"},
    {"olmoe-1b-7b", 6.92, 1.28, 16 * 64, "bf16"},
    {"qwen2-57b-a14b", 57.4, 14.2, 28 * 64, "bf16"},
    {"qwen3-235b-a22b", 235, 22.2, 94 * 128, "bf16"},
    {"qwen3-30b-a3b", 30.5, 3.3, 48 * 128, "bf16"},
    {"qwen3-next-80b-a3b", 79.7, 3.9, 48 * 512, "bf16"},
    {"qwen3.5-35b-a3b", 34.7, 3.5, 40 * 256, "bf16"},
};

fs::path PublishedDirectory() { return fs::path(MOESAIC_TEST_DATA_DIR) / "published"; }

TEST(PublishedModelsTest, EveryConfigurationIsInTheTable) {
  std::set<std::string> listed;
  for (const Published& model : kPublished) listed.insert(model.name);
  std::set<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(PublishedDirectory())) {
    if (entry.is_directory()) found.insert(entry.path().filename());
  }
  EXPECT_EQ(listed, found);
}

class PublishedModelsTest : public testing::TestWithParam<Published> {};

TEST_P(PublishedModelsTest, HasTheParametersThatItsMakersSay) {
  const Published& published = GetParam();
  constexpr uint64_t kMemory = uint64_t{4} << 40;
  EngineOptions asked;
  asked.model = PublishedDirectory() / published.name;
  asked.machine.memory = std::to_string(kMemory);
  EngineOptions options = OptionsOnMachine(asked, MadeUpMachine());
  const ModelSummary model = SummariseModel(options);
  EXPECT_FALSE(model.has_weights);
  EXPECT_EQ(model.weight_type, published.weights);
  EXPECT_EQ(static_cast<int64_t>(model.num_experts()), published.experts);
  EXPECT_NEAR(static_cast<double>(model.total_parameters) / 1e9, published.total,
              published.total * 0.01);
  // Makers round, and GLM-5's say 40 G without the indexer's 0.7.
  EXPECT_NEAR(static_cast<double>(model.active_parameters) / 1e9, published.active,
              published.active * 0.05);

  options.expert_memory = "25%";
  const EnginePlan plan = PlanEngine(options, OpenModelFilesToPlan(options));
  EXPECT_EQ(plan.expert_slots, published.experts / 4);
  EXPECT_EQ(plan.slot_bytes, model.slot_bytes);
  EXPECT_GE(plan.slot_bytes, model.expert_bytes);
  EXPECT_LE(plan.ledger.total_bytes(), kMemory);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedModelsTest, testing::ValuesIn(kPublished),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace moesaic
