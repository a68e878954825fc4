#include "tests/reference/lightning_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/serving/plan/plan_presets.h"

namespace moesaic {
namespace {

constexpr double kGiB = 1073741824.0;
constexpr double kTera = 1e12;

// The constants of the original's code.
LightningMachine L4(double host_gib) {
  return {24 * kGiB, 285 * kGiB, 104 * kTera, 16 * kGiB, host_gib * kGiB, 76 * kGiB, 1.6 * kTera};
}
LightningMachine T4(double host_gib, int64_t tensor_parallel = 1) {
  return {15 * kGiB,       300 * kGiB, 65 * kTera,  16 * kGiB,
          host_gib * kGiB, 100 * kGiB, 0.8 * kTera, tensor_parallel};
}

#define EXPECT_REL(value, expected) EXPECT_NEAR((value) / (expected), 1, 1e-4)

TEST(LightningModelTest, ReproducesTheReadme) {
  const ModelShape model = ModelPreset("mixtral-8x7b");
  LightningMachine machine = L4(1);
  machine.host_memory_bytes = 197880360960.0;
  const auto e = EstimateLightning(model, machine, {77, 32}, 324, 14);
  ASSERT_TRUE(e.has_value());
  EXPECT_REL(e->intermediate_bytes / kGiB, 5.2533);
  EXPECT_REL(e->device_peak_bytes / kGiB, 20.640);
  EXPECT_REL(e->host_peak_bytes / kGiB, 147.28152);
  EXPECT_REL(e->resident_share, 0.055884688);
  EXPECT_REL(e->least_resident_share, 0.0541946);
  EXPECT_REL(e->link_s, 0.154894);
  EXPECT_REL(e->device_s, 0.12949379);
  EXPECT_REL(e->cpu_s, 0.02572752);
  EXPECT_REL(e->layer_s * 32, 4.957);
  EXPECT_REL(e->generated_tokens_per_s, 944.66);
  EXPECT_DOUBLE_EQ(e->prefill_home_bytes, 6158712832.0);
  EXPECT_DOUBLE_EQ(e->decode_home_bytes, 2758672384.0);
  EXPECT_DOUBLE_EQ(LightningMlpFlop(model, 324), 228304355328.0);
  EXPECT_DOUBLE_EQ(LightningMlpBytes(model, 324), 2830516224.0);
  EXPECT_DOUBLE_EQ(LightningAttentionFlop(model, 324, 1, 109), 291568896.0);
  EXPECT_DOUBLE_EQ(LightningAttentionBytes(model, 324, 1, 109), 149962752.0);
}

TEST(LightningModelTest, OperationalIntensities) {
  const ModelShape model = ModelPreset("mixtral-8x7b");
  const double attention =
      LightningAttentionFlop(model, 1, 1, 512) / LightningAttentionBytes(model, 1, 1, 512);
  EXPECT_NEAR(attention, 2.0, 5e-4);
  EXPECT_NEAR(4 * attention, 8.0, 2e-3);  // keys and values in 4 bits
  const auto mlp = [&](int64_t tokens) {
    return LightningMlpFlop(model, tokens) / LightningMlpBytes(model, tokens);
  };
  EXPECT_NEAR(mlp(32), 7.997, 5e-4);
  EXPECT_NEAR(mlp(128), 31.95, 5e-3);
  EXPECT_NEAR(mlp(1024), 252.6, 0.05);
  EXPECT_NEAR(mlp(16384), 3373, 0.5);
  EXPECT_NEAR(mlp(2473), 599, 0.2);
  // Fig. 5: with micro-batches of 128 the link (16 GB/s) is the limit below 19.3 of them, where it
  // carries what the memory of the GPU (300 GB/s, 242 TFLOP/s) can be computed from (Eq. 10).
  const double balance = std::min(242e12, 300e9 * mlp(128)) / 16e9;
  int64_t tokens = 128;
  while (mlp(tokens) < balance) ++tokens;
  EXPECT_NEAR(static_cast<double>(tokens), 2473, 2);
  EXPECT_NEAR(static_cast<double>(tokens) / 128, 19.3, 0.05);
}

struct Recorded {
  const char* setting;
  const char* model;
  LightningMachine machine;
  LightningJob job;
  int64_t micro_batch;
  int64_t num_micro_batches;
};

// Policies that the paper's records show, with the host memory that each was made for.
std::vector<Recorded> RecordedPolicies() {
  std::vector<Recorded> rows;
  const auto add = [&rows](const char* setting, const char* model, const LightningMachine& machine,
                           int64_t prompt, const std::vector<std::vector<int64_t>>& policies) {
    for (const auto& p : policies)
      rows.push_back({setting, model, machine, {prompt, p[0]}, p[1], p[2]});
  };
  const char* small = "mixtral-8x7b";
  const char* large = "mixtral-8x22b";
  add("S1", small, T4(185.5), 77, {{32, 164, 19}, {64, 164, 19}, {128, 164, 14}, {256, 100, 15}});
  add("S1(p)", small, T4(185), 418, {{32, 36, 14}, {64, 36, 14}, {128, 36, 14}, {256, 36, 14}});
  add("S2", small, L4(184.5), 77, {{32, 324, 14}, {64, 228, 16}, {128, 164, 16}});
  add("S2", small, L4(182), 77, {{256, 132, 12}});
  add("S2(p)", small, L4(188), 418, {{32, 68, 16}, {64, 68, 15}, {128, 68, 13}, {256, 68, 11}});
  add("S6(p)", large, T4(400, 2), 417, {{32, 36, 7}, {64, 36, 7}, {128, 36, 7}, {256, 36, 7}});
  add("S7(p)", large, T4(401, 4), 417, {{32, 36, 18}, {64, 36, 17}, {128, 36, 15}, {256, 36, 13}});
  add("S8", "dbrx", T4(404, 2), 77, {{128, 68, 33}});
  add("S9", "dbrx", T4(400, 4), 77, {{32, 68, 64}, {64, 68, 53}});
  add("S9", "dbrx", T4(402, 4), 77, {{256, 36, 51}});
  add("Table 4 S1 summarization", small, T4(185), 1984, {{64, 4, 19}});
  add("Table 4 S2 reasoning", small, L4(182), 256, {{50, 100, 15}});
  add("Table 5 S1", small, T4(185), 418, {{128, 36, 14}});
  return rows;
}

TEST(LightningModelTest, FindsTheRecordedPolicies) {
  for (const Recorded& row : RecordedPolicies()) {
    const auto found = SearchLightning(ModelPreset(row.model), row.machine, row.job);
    ASSERT_TRUE(found.has_value()) << row.setting;
    EXPECT_EQ(found->micro_batch, row.micro_batch)
        << row.setting << " " << row.job.generated_tokens;
    EXPECT_EQ(found->num_micro_batches, row.num_micro_batches)
        << row.setting << " " << row.job.generated_tokens;
  }
}

TEST(LightningModelTest, TheRecordedPolicyOfReasoningOnT4LiesOnThePlateau) {
  // Table 4: (36, 26); the search stops at the first of equal throughputs, (36, 19).
  const ModelShape model = ModelPreset("mixtral-8x7b");
  const auto found = SearchLightning(model, T4(185), {256, 50});
  const auto recorded = EstimateLightning(model, T4(185), {256, 50}, 36, 26);
  ASSERT_TRUE(found && recorded);
  EXPECT_EQ(found->num_micro_batches, 19);
  EXPECT_NEAR(found->generated_tokens_per_s, 131.134, 1e-3);
  EXPECT_NEAR(recorded->generated_tokens_per_s / found->generated_tokens_per_s, 1, 1e-9);
}

TEST(LightningModelTest, WhatDoesNotFitIsSaid) {
  EXPECT_FALSE(SearchLightning(ModelPreset("mixtral-8x22b"), T4(100), {77, 32}).has_value());
}

}  // namespace
}  // namespace moesaic
