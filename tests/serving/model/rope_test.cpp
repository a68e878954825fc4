#include "serving/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

TEST(RopeTest, DefaultAnglesAndLinearScaling) {
  RopeConfig rope;
  const RopeTable plain(rope, 8, 64, 32);
  EXPECT_EQ(plain.half(), 4);
  EXPECT_FLOAT_EQ(plain.cos(0)[3], 1.0f);
  EXPECT_FLOAT_EQ(plain.sin(0)[3], 0.0f);
  EXPECT_NEAR(plain.cos(5)[1], std::cos(5 * std::pow(10000.0, -0.25)), 1e-6);
  rope.kind = RopeKind::kLinear;
  rope.factor = 4;
  const RopeTable linear(rope, 8, 64, 32);
  EXPECT_NEAR(linear.sin(20)[2], plain.sin(5)[2], 1e-6);
}

TEST(RopeTest, Llama3KeepsFastAndSlowsLowFrequencies) {
  RopeConfig rope;
  rope.kind = RopeKind::kLlama3;
  rope.theta = 500000;
  rope.factor = 8;
  rope.original_max_position = 8192;
  const RopeFrequencies scaled = ComputeRopeFrequencies(rope, 128, 131072, 131072);
  rope.kind = RopeKind::kDefault;
  const RopeFrequencies plain = ComputeRopeFrequencies(rope, 128, 131072, 131072);
  EXPECT_FLOAT_EQ(scaled.inverse[0], plain.inverse[0]);
  EXPECT_FLOAT_EQ(scaled.inverse[63], plain.inverse[63] / 8);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_LE(scaled.inverse[i], plain.inverse[i] * 1.000001f);
    EXPECT_GE(scaled.inverse[i], plain.inverse[i] / 8.000001f);
  }
}

TEST(RopeTest, YarnScalesCosAndSin) {
  RopeConfig rope;
  rope.kind = RopeKind::kYarn;
  rope.factor = 4;
  rope.original_max_position = 1024;
  EXPECT_NEAR(ComputeRopeFrequencies(rope, 64, 4096, 4096).attention_factor,
              0.1 * std::log(4.0) + 1, 1e-12);
  rope.attention_factor = 1.25;
  const RopeTable table(rope, 64, 4096, 16);
  EXPECT_FLOAT_EQ(table.cos(0)[0], 1.25f);
}

TEST(RopeTest, DynamicIsPlainUntilTheContextIsLonger) {
  RopeConfig rope;
  rope.kind = RopeKind::kDynamicNtk;
  rope.factor = 2;
  const RopeFrequencies inside = ComputeRopeFrequencies(rope, 64, 1024, 512);
  const RopeFrequencies beyond = ComputeRopeFrequencies(rope, 64, 1024, 4096);
  rope.kind = RopeKind::kDefault;
  const RopeFrequencies plain = ComputeRopeFrequencies(rope, 64, 1024, 4096);
  EXPECT_EQ(inside.inverse, plain.inverse);
  // theta' = theta * (2 * 4096 / 1024 - 1)^(64 / 62)
  EXPECT_NEAR(beyond.inverse[31], std::pow(10000.0 * std::pow(7.0, 64.0 / 62.0), -62.0 / 64.0),
              1e-9);
}

}  // namespace
}  // namespace moesaic
