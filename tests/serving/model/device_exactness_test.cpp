// Devices never change the answer: logits bit for bit over numbers of devices, ways to handle a
// miss, device memory, threads and faults, against a model without devices.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/hash.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

uint64_t HashOf(const std::vector<float>& values) {
  return Hash64(std::as_bytes(std::span(values)));
}

Isa BestIsa() {
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2}) {
    if (IsaSupported(isa)) return isa;
  }
  return Isa::kScalar;
}

// Prefill of 40 tokens in chunks of 16, then 6 decode steps with forced tokens.
uint64_t LogitHash(ModelHarness& model, int step_of_loss = -1) {
  const auto vocab = static_cast<int32_t>(model.config().vocab_size);
  const auto token = [&](int i) { return (i * 7919 + 13) % vocab; };
  std::vector<int32_t> prompt;
  prompt.reserve(40);
  for (int i = 0; i < 40; ++i) prompt.push_back(token(i));
  auto sequence = model.NewSequence(48);
  std::vector<float> all = model.Prefill(sequence, prompt, 16);
  for (int i = 0; i < 6; ++i) {
    if (i == step_of_loss) model.device(0).Lose();
    const ModelHarness::Piece piece = {&sequence, {token(40 + i)}};
    const std::vector<float> logits = model.Run({&piece, 1});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return HashOf(all);
}

class DeviceExactnessTest : public testing::Test {
 protected:
  DeviceExactnessTest() {
    options_.isa = BestIsa();
    options_.kv_blocks = 16;
    ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
    expected_ = LogitHash(model);
    experts_ = model.config().num_sparse_layers() * model.config().num_experts();
    options_.devices = 2;
    options_.device_slots = experts_ / 8;
    options_.link = {1e9, 5};
  }

  HarnessOptions options_;
  uint64_t expected_ = 0;
  int64_t experts_ = 0;
};

TEST_F(DeviceExactnessTest, DevicesMissesMemoryAndThreads) {
  for (const int devices : {1, 2, 3}) {
    for (const MissMode miss : {MissMode::kFetch, MissMode::kHost, MissMode::kAuto}) {
      for (const int64_t slots : {experts_ / 4 / devices, int64_t{1}}) {
        for (const int threads : {1, 2}) {
          options_.devices = devices;
          options_.miss = miss;
          options_.device_slots = slots;
          options_.threads = threads;
          ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
          EXPECT_EQ(LogitHash(model), expected_)
              << devices << " devices, miss " << static_cast<int>(miss) << ", " << slots
              << " slots, " << threads << " threads";
          const ExpertStats& stats = model.stats().experts;
          switch (miss) {
            case MissMode::kFetch:
              EXPECT_EQ(stats.on_host, 0u);
              EXPECT_GT(stats.bytes_read, 0u);
              break;
            case MissMode::kHost:
              EXPECT_EQ(stats.on_host, stats.misses);
              EXPECT_EQ(stats.bytes_read, 0u);
              break;
            case MissMode::kAuto:
              EXPECT_GT(stats.on_host, 0u);
              break;
          }
        }
      }
    }
  }
}

TEST_F(DeviceExactnessTest, CopiesThatFail) {
  for (const MissMode miss : {MissMode::kFetch, MissMode::kAuto}) {
    for (const double probability : {0.3, 1.0}) {
      options_.miss = miss;
      options_.faults = {{.copy_failure_probability = probability, .seed = 1},
                         {.copy_failure_probability = probability, .seed = 2}};
      ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
      EXPECT_EQ(LogitHash(model), expected_) << probability;
      const ExpertStats& stats = model.stats().experts;
      // What was fetched early and failed is a layer's to try again.
      EXPECT_GT(stats.on_host, 0u);
      EXPECT_GE(stats.on_host + stats.fetched_early, stats.given_up);
      // How much is fetched at all, the machine's speed decides there.
      if (miss == MissMode::kAuto) continue;
      EXPECT_GT(stats.failed_reads, stats.given_up);
      EXPECT_GT(stats.given_up, 0u);
      EXPECT_EQ(stats.bytes_read == 0, probability == 1.0);
    }
  }
}

TEST_F(DeviceExactnessTest, CopiesThatStall) {
  options_.faults = {
      {.stalls = {{.copy = 3, .stall_us = 20'000}, {.copy = 10, .stall_us = 20'000}}}};
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
  EXPECT_EQ(LogitHash(model), expected_);
  EXPECT_GE(model.stats().experts.blocked_us, 20'000u);
}

TEST_F(DeviceExactnessTest, ADeviceIsLostBetweenSteps) {
  for (const MissMode miss : {MissMode::kFetch, MissMode::kHost, MissMode::kAuto}) {
    options_.miss = miss;
    ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
    EXPECT_EQ(LogitHash(model, 3), expected_);
    EXPECT_TRUE(model.device_status()[0].lost);
    EXPECT_FALSE(model.device_status()[1].lost);
    EXPECT_GT(model.device_status()[0].on_host, 0u);
    EXPECT_EQ(model.device_status()[0].resident, 0);
  }
}

// In the middle of a layer's copies.
TEST_F(DeviceExactnessTest, DevicesAreLostAtACopy) {
  for (const uint64_t copy : {1, 7, 40}) {
    options_.faults = {{.lost_at_copy = copy}, {.lost_at_copy = copy + 5}};
    ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
    EXPECT_EQ(LogitHash(model), expected_) << copy;
    EXPECT_TRUE(model.device_status()[0].lost);
    EXPECT_TRUE(model.device_status()[1].lost);
    EXPECT_EQ(LogitHash(model), expected_);
  }
}

TEST_F(DeviceExactnessTest, ADeviceWithoutMemorySaysWhatToChange) {
  options_.faults = {{}, {.granted_allocations = 0}};
  try {
    const ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("device emulated:1"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("--device-memory"), std::string::npos);
  }
}

}  // namespace
}  // namespace moesaic
