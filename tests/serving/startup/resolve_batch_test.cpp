#include "serving/startup/resolve_batch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/serving/online/engine_harness.h"
#include "tests/serving/startup/made_up_machine.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

EngineOptions AskedOfBatch() {
  EngineOptions options = SmallOptions();
  options.model = MOESAIC_SAMPLE_MODEL_DIR;
  options.model_dir.clear();
  options.kv_memory = "auto";
  options.max_model_len = 0;
  options.max_num_seqs = 0;
  options.max_num_batched_tokens = 0;
  options.machine.memory = "160MiB";
  options.machine.threads = 2;
  return options;
}

struct Measuring {
  std::vector<std::string> stages;
  MeasuringProgress progress() {
    return [this](std::string_view stage) { stages.emplace_back(stage); };
  }
};

TEST(ResolveBatchTest, AShortJobIsSizedByRule) {
  Measuring measuring;
  const Machine machine = MadeUpMachine();
  const BatchSetup setup =
      ResolveBatch(OpenForBatch(AskedOfBatch(), machine), {UniformWorkload(20, 10, 7), {}}, machine,
                   measuring.progress());
  EXPECT_EQ(setup.plan.sizes.max_num_seqs, 7);
  EXPECT_EQ(setup.plan.ledger.limit_bytes, 160u << 20);
  EXPECT_TRUE(setup.plan.ledger.fits());
  EXPECT_FALSE(setup.plan.execution);
  EXPECT_TRUE(measuring.stages.empty());
  EXPECT_EQ(setup.files.config.num_experts(), 32);
}

TEST(ResolveBatchTest, WhatWasAskedForIsKeptAndTheProfileSaysHowExpertsStream) {
  EngineOptions asked = AskedOfBatch();
  asked.max_num_seqs = 3;
  Machine machine = MadeUpMachine();
  AddDisk(machine, 1 << 20, 8);
  const BatchSetup setup =
      ResolveBatch(OpenForBatch(asked, machine), {UniformWorkload(20, 10, 7), {}}, machine,
                   [](std::string_view) {});
  EXPECT_EQ(setup.plan.sizes.max_num_seqs, 3);
  EXPECT_EQ(setup.options.io_depth, 8);
  EXPECT_EQ(setup.options.packet_bytes, 1u << 20);
  EXPECT_EQ(setup.options.device_packet_bytes, 0u);  // of copies, which nobody chose
}

// A long job is measured for once; the next one finds what was kept.
TEST(ResolveBatchTest, ALongJobIsPlannedByWhatWasMeasured) {
  std::string name = (fs::temp_directory_path() / "moesaic_startup_XXXXXX").string();
  const fs::path directory = mkdtemp(name.data());
  Machine machine = MadeUpMachine();
  machine.module_costs = directory;
  const auto resolve = [&](Measuring& measuring) {
    return ResolveBatch(OpenForBatch(AskedOfBatch(), machine), {UniformWorkload(40, 20, 100), {}},
                        machine, measuring.progress());
  };
  Measuring first;
  EXPECT_TRUE(resolve(first).plan.execution);
  ASSERT_FALSE(first.stages.empty());
  EXPECT_EQ(first.stages.back(), "");
  Measuring second;
  EXPECT_TRUE(resolve(second).plan.execution);
  EXPECT_TRUE(second.stages.empty());
  fs::remove_all(directory);
}

}  // namespace
}  // namespace moesaic
