#include "serving/startup/resolve_engine.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/metrics.h"
#include "serving/model/model.h"
#include "serving/online/create_engine.h"
#include "serving/startup/machine_options.h"
#include "serving/startup/measured_costs.h"
#include "serving/text/tokenizer.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/online/engine_harness.h"
#include "tests/serving/startup/made_up_machine.h"

namespace moesaic {
namespace {

EngineOptions AskedOfEngine() {
  EngineOptions options = SmallOptions();
  options.model = MOESAIC_SAMPLE_MODEL_DIR;
  options.model_dir.clear();
  options.threads = 0;
  options.machine.threads = 2;
  options.predictor = "none";
  return options;
}

TEST(ResolveEngineTest, GivesWhatAnEngineStartsWith) {
  EngineSetup setup = ResolveEngine(AskedOfEngine(), MadeUpMachine());
  EXPECT_EQ(setup.options.threads, 2);
  EXPECT_EQ(setup.plan.ledger.limit_bytes, uint64_t{1} << 30);
  EXPECT_EQ(setup.plan.expert_slots, 64);
  EXPECT_EQ(setup.files.config.num_experts(), 32);
  MetricsRegistry metrics;
  const auto engine = CreateEngine(std::move(setup), metrics);
  const std::vector<int32_t> prompt = engine->tokenizer().Encode("The old man");
  EXPECT_EQ(SubmitOne(*engine, Greedy(prompt, 4))->Wait().tokens.size(), 4u);
}

// Models whose attention chooses positions have keys of the indexer in their blocks.
TEST(ResolveEngineTest, AnIndexersKeysAreCounted) {
  EngineOptions asked = AskedOfEngine();
  asked.model = std::string(MOESAIC_TEST_DATA_DIR) + "/models/glm_moe_dsa_bf16_shared";
  asked.max_model_len = 0;
  const EngineSetup setup = ResolveEngine(asked, MadeUpMachine());
  EXPECT_EQ(setup.plan.max_context_tokens, 1024);
  // Four layers have rows of 24 + 8 values, and two of them a key of 16 besides, in bf16.
  EXPECT_EQ(Model::KvBlockBytes(setup.files.config, WeightType::kBf16),
            static_cast<uint64_t>(kKvBlockTokens * 2 * (4 * (24 + 8) + 2 * 16)));
}

// The sample model is too small to say anything of a disk: its reading stays open without a
// profile.
TEST(ResolveEngineTest, TheProfileSaysHowExpertsAreRead) {
  const EngineSetup open = ResolveEngine(AskedOfEngine(), MadeUpMachine());
  EXPECT_EQ(open.options.io_depth, 0);
  EXPECT_EQ(open.options.packet_bytes, 0u);

  Machine machine = MadeUpMachine();
  AddDisk(machine, 1 << 20, 2);
  const EngineSetup chosen = ResolveEngine(AskedOfEngine(), machine);
  EXPECT_EQ(chosen.options.io_depth, 2);
  EXPECT_EQ(chosen.options.packet_bytes, 1u << 20);
  // The plan counts what is read at a time.
  EXPECT_NE(chosen.plan.ledger.bytes("expert staging"), open.plan.ledger.bytes("expert staging"));

  EngineOptions asked = AskedOfEngine();
  asked.io_depth = 3;
  const EngineSetup partly = ResolveEngine(asked, machine);
  EXPECT_EQ(partly.options.io_depth, 3);
  EXPECT_EQ(partly.options.packet_bytes, 1u << 20);

  asked.expert_memory = "100%";  // nothing is read while serving
  EXPECT_EQ(ResolveEngine(asked, machine).options.packet_bytes, 0u);
}

// What was measured of a model's modules plans how its lines run.
TEST(ResolveEngineTest, LinesOfBatchesAreSizedByWhatWasMeasured) {
  const TempDir directory;
  Machine machine = MadeUpMachine();
  machine.module_costs = directory.path();
  EngineOptions asked = AskedOfEngine();
  asked.serves_batches = true;
  const EngineSetup by_rule = ResolveEngine(asked, machine);
  EXPECT_EQ(by_rule.plan.module_batches.predicted_tokens_per_s, 0);
  EXPECT_EQ(by_rule.plan.module_batches.tokens, 4 * 128);

  const EngineOptions here = OptionsOnMachine(asked, machine);
  MeasureModuleCosts(here, here, by_rule.files, {}, true, machine, [](std::string_view) {});
  const EngineSetup planned = ResolveEngine(asked, machine);
  const ModuleBatchPlan& lines = planned.plan.module_batches;
  EXPECT_GT(lines.predicted_tokens_per_s, 0);
  EXPECT_EQ(lines.tokens, planned.options.batch_num_batched_tokens);
  EXPECT_EQ(lines.sequences, planned.options.batch_num_seqs);
  EXPECT_TRUE(planned.plan.ledger.fits());

  asked.batch_num_seqs = 5;
  asked.batch_num_batched_tokens = 256;
  const EngineSetup forced = ResolveEngine(asked, machine);
  EXPECT_EQ(forced.plan.module_batches.sequences, 5);
  EXPECT_EQ(forced.plan.module_batches.tokens, 256);
}

TEST(ResolveEngineTest, TooLittleMemoryIsRefusedWithTheLedger) {
  EngineOptions asked = AskedOfEngine();
  asked.machine.memory = "20MiB";
  try {
    ResolveEngine(asked, MadeUpMachine());
    ADD_FAILURE() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("\n  dense weights "), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("20.0 MiB"), std::string::npos);
  }
}

}  // namespace
}  // namespace moesaic
