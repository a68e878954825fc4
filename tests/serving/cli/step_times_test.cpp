#include "serving/cli/step_times.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace moesaic {
namespace {

HardwareProfile Machine() {
  HardwareProfile machine;
  DiskProfile disk;
  disk.rates.resize(2);
  disk.rates[0].read.value = 1e9;
  disk.rates[1].read.value = 2e9;
  machine.disks = {disk};
  MemoryRate memory;
  memory.threads = 2;
  memory.read.value = 10e9;
  machine.memory = {memory};
  return machine;
}

TEST(StepTimesTest, BytesOverTheFastestRates) {
  const ModelConfig model = LoadModelConfig(MOESAIC_SAMPLE_MODEL_DIR);
  const StepTimes times = DeriveStepTimes(Machine(), model);
  const auto expert = static_cast<uint64_t>(3 * model.hidden_size * model.expert_width() * 2);
  EXPECT_EQ(times.expert_bytes, expert);
  EXPECT_NEAR(static_cast<double>(times.expert_copy_ns), static_cast<double>(expert) / 2, 1);
  // At least the projections, the router and the token's experts.
  const GroupedQuerySpec& attention = model.attention();
  const int64_t dense =
      model.hidden_size * 2 * (attention.q_width() + attention.qkv_width() + model.num_experts());
  const double least =
      static_cast<double>(dense + model.top_k() * static_cast<int64_t>(expert)) / 10;
  EXPECT_GE(static_cast<double>(times.layer_compute_ns), least - 1);
  EXPECT_LE(static_cast<double>(times.layer_compute_ns), 1.1 * least);
}

TEST(StepTimesTest, WhatWasNotMeasuredIsNotGuessed) {
  const ModelConfig model = LoadModelConfig(MOESAIC_SAMPLE_MODEL_DIR);
  HardwareProfile machine = Machine();
  machine.disks.clear();
  EXPECT_THROW(DeriveStepTimes(machine, model), Error);
  machine = Machine();
  machine.memory.clear();
  EXPECT_THROW(DeriveStepTimes(machine, model), Error);
}

}  // namespace
}  // namespace moesaic
