#include "serving/startup/machine_options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/core/base/caught.h"
#include "tests/serving/startup/made_up_machine.h"

namespace moesaic {
namespace {

EngineOptions AskedOfSample() {
  EngineOptions options;
  options.model = MOESAIC_SAMPLE_MODEL_DIR;
  return options;
}

TEST(MachineOptionsTest, OpenChoicesAreTheMachines) {
  const EngineOptions options = OptionsOnMachine(AskedOfSample(), MadeUpMachine());
  EXPECT_EQ(options.model_dir, MOESAIC_SAMPLE_MODEL_DIR);
  EXPECT_EQ(options.machine_memory_bytes, uint64_t{1} << 30);
  EXPECT_EQ(options.threads, 2);  // one for each core
  EXPECT_EQ(options.machine.numa, NumaPolicy::kOff);
  EXPECT_TRUE(options.thread_layout.places.empty());
  EXPECT_TRUE(options.kernel_choices.empty());
  EXPECT_EQ(options.devices.count, 0);
}

TEST(MachineOptionsTest, WhatWasAskedForIsKept) {
  EngineOptions asked = AskedOfSample();
  asked.machine.memory = "25%";
  asked.machine.threads = 3;
  asked.machine.pin_threads = true;
  asked.machine.numa = NumaPolicy::kInterleave;
  asked.io_depth = 5;
  const EngineOptions options = OptionsOnMachine(asked, MadeUpMachine());
  EXPECT_EQ(options.machine_memory_bytes, uint64_t{1} << 28);
  EXPECT_EQ(options.threads, 3);
  EXPECT_FALSE(options.thread_layout.places.empty());
  EXPECT_EQ(options.machine.numa, NumaPolicy::kInterleave);
  EXPECT_EQ(options.io_depth, 5);
  asked.machine.memory = "64MiB";
  EXPECT_EQ(OptionsOnMachine(asked, MadeUpMachine()).machine_memory_bytes, 64u << 20);
}

TEST(MachineOptionsTest, TheProfileChoosesKernelsUnlessTheyAreForced) {
  Machine machine = MadeUpMachine();
  machine.profile.emplace();
  machine.profile->kernels.emplace_back().weights = "int8";
  EXPECT_EQ(OptionsOnMachine(AskedOfSample(), machine).kernel_choices.size(), 1u);
  machine.isa_forced = true;
  EXPECT_TRUE(OptionsOnMachine(AskedOfSample(), machine).kernel_choices.empty());
}

TEST(MachineOptionsTest, DevicesHaveAnExpertEachAndTakeTurnsOnNodes) {
  EngineOptions asked = AskedOfSample();
  asked.devices.count = 40;  // of the model's 32 experts in a layer
  Machine machine = MadeUpMachine();
  EXPECT_EQ(OptionsOnMachine(asked, machine).devices.count, 32);
  asked.devices.count = 2;
  EXPECT_TRUE(OptionsOnMachine(asked, machine).devices.numa_nodes.empty());
  machine.topology.nodes.push_back({3, {}, 0});
  const EngineOptions options = OptionsOnMachine(asked, machine);
  EXPECT_EQ(options.devices.count, 2);
  EXPECT_EQ(options.devices.numa_nodes, (std::vector<int>{0, 3}));
  // What is resolved once stays as it is.
  EXPECT_EQ(OptionsOnMachine(options, machine).devices.numa_nodes, options.devices.numa_nodes);
}

TEST(MachineOptionsTest, RulesNameNodesThatThisMachineHas) {
  EngineOptions asked = AskedOfSample();
  asked.devices.count = 1;
  asked.place = {"experts.0-3=host@numa:3"};
  Machine machine = MadeUpMachine();
  const Error error = Caught([&] { OptionsOnMachine(asked, machine); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Contains(error, "'experts.0-3=host@numa:3': this machine has no NUMA node 3, but 0"))
      << error.what();
  machine.topology.nodes.push_back({3, {}, 0});
  EXPECT_EQ(OptionsOnMachine(asked, machine).place, asked.place);
}

TEST(MachineOptionsTest, WeightsOfAutoAreWhatTheCheckpointHas) {
  const auto asked = [](const char* model) {
    EngineOptions options;
    options.model = std::string(MOESAIC_TEST_DATA_DIR "/") + model;
    return options;
  };
  const auto chosen = [](const EngineOptions& options) {
    return OptionsOnMachine(options, MadeUpMachine()).dtype;
  };
  EXPECT_EQ(chosen(asked("models/deepseek_v3_fp8")), WeightType::kFp8);
  EXPECT_EQ(chosen(asked("models/glm4_moe_fp8")), WeightType::kFp8);
  EXPECT_EQ(chosen(asked("models/gpt_oss_mxfp4")), WeightType::kMxfp4);
  EXPECT_EQ(chosen(asked("models/kimi_k2_int4")), WeightType::kW4A16);
  EXPECT_EQ(chosen(asked("models/kimi_k25_int4")), WeightType::kW4A16);
  // Its blocks are 32 columns wide.
  EXPECT_EQ(chosen(asked("fp8/qwen3_moe")), std::nullopt);
  EngineOptions kept = asked("models/minimax_m2_fp8");
  kept.dtype = WeightType::kBf16;
  EXPECT_EQ(chosen(kept), WeightType::kBf16);
  for (const char* const model : {"fp8/qwen3_moe", "models/minimax_m2_bf16_rotary_dim"}) {
    EngineOptions fp8 = asked(model);
    fp8.dtype = WeightType::kFp8;
    try {
      chosen(fp8);
      ADD_FAILURE() << model << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("--dtype fp8"), std::string::npos) << error.what();
    }
  }
  EngineOptions packed = asked("models/minimax_m2_fp8");
  packed.dtype = WeightType::kW4A16;
  try {
    chosen(packed);
    ADD_FAILURE() << "w4a16 was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("packed int4"), std::string::npos) << error.what();
  }
}

// With activations in f32 where they are asked for, and where GPUs compute, which do not round them
// to int8.
TEST(MachineOptionsTest, Mxfp4TakesTheActivationsThatAllItsProductsCanHave) {
  const cuda::Kernels kernels = {};
  const auto chosen = [&](const char* model, std::optional<WeightType> dtype, bool gpus) {
    EngineOptions options;
    options.model = std::string(MOESAIC_TEST_DATA_DIR "/models/") + model;
    options.dtype = dtype;
    options.devices.count = 1;
    if (gpus) options.devices.emulated_kernels = &kernels;
    return OptionsOnMachine(options, MadeUpMachine()).dtype;
  };
  const char* const model = "gpt_oss_mxfp4";
  for (const bool gpus : {false, true}) {
    SCOPED_TRACE(gpus);
    const WeightType of_auto = gpus ? WeightType::kMxfp4F32 : WeightType::kMxfp4;
    EXPECT_EQ(chosen(model, std::nullopt, gpus), of_auto);
    EXPECT_EQ(chosen(model, WeightType::kMxfp4, gpus), of_auto);
    EXPECT_EQ(chosen(model, WeightType::kMxfp4F32, gpus), WeightType::kMxfp4F32);
    EXPECT_EQ(chosen(model, WeightType::kF32, gpus), WeightType::kF32);
  }
  for (const WeightType dtype : {WeightType::kMxfp4, WeightType::kMxfp4F32}) {
    const Error error = Caught([&] { chosen("gpt_oss_bf16_window", dtype, false); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Contains(error, fmt::format("--dtype {}: the experts of", TraitsOf(dtype).dtype)))
        << error.what();
    EXPECT_TRUE(Contains(error, "are not in mxfp4")) << error.what();
  }
}

TEST(MachineOptionsTest, AModelThatIsNotThereIsSaid) {
  EngineOptions asked;
  asked.model = "/nonexistent/model";
  EXPECT_THROW(OptionsOnMachine(asked, MadeUpMachine()), Error);
}

}  // namespace
}  // namespace moesaic
