#include "serving/model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace moesaic {
namespace {

TEST(RopeTest, DefaultAnglesAndLinearScaling) {
  RopeConfig rope;
  const RopeTable plain({.head_dim = 8, .rotary_dim = 8, .rope = rope}, 64, 32);
  EXPECT_EQ(plain.half(), 4);
  EXPECT_FLOAT_EQ(plain.cos(0)[3], 1.0f);
  EXPECT_FLOAT_EQ(plain.sin(0)[3], 0.0f);
  EXPECT_NEAR(plain.cos(5)[1], std::cos(5 * std::pow(10000.0, -0.25)), 1e-6);
  rope.kind = RopeKind::kLinear;
  rope.factor = 4;
  const RopeTable linear({.head_dim = 8, .rotary_dim = 8, .rope = rope}, 64, 32);
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
  const RopeTable table({.head_dim = 64, .rotary_dim = 64, .rope = rope}, 4096, 16);
  EXPECT_FLOAT_EQ(table.cos(0)[0], 1.25f);
}

// Against what transformers 5.23 computes (ROPE_INIT_FUNCTIONS["yarn"]) for head_dim 64, theta 1e4,
// original_max_position_embeddings 4096.
TEST(RopeTest, YarnOfTransformers) {
  struct Case {
    double factor, mscale, mscale_all_dim, attention_factor;  // 0: not given
    double expected;
  };
  for (const Case& c :
       {Case{40, 1, 0.707, 0, 1.0857263992561355}, Case{40, 0.707, 0.707, 0, 1},
        Case{4, 2, 0.5, 0, 1.1944648761087142},
        Case{4, 2, 0, 0, 1.138629436111989},  // one alone says nothing
        Case{4, 0, 2, 0, 1.138629436111989}, Case{1, 1, 0.5, 0, 1}, Case{4, 2, 0.5, 1.25, 1.25}}) {
    RopeConfig rope;
    rope.kind = RopeKind::kYarn;
    rope.theta = 10000;
    rope.factor = c.factor;
    rope.mscale = c.mscale;
    rope.mscale_all_dim = c.mscale_all_dim;
    rope.attention_factor = c.attention_factor;
    rope.original_max_position = 4096;
    const RopeFrequencies yarn = ComputeRopeFrequencies(rope, 64, 163840, 163840);
    EXPECT_NEAR(yarn.attention_factor, c.expected, 1e-12)
        << c.factor << " " << c.mscale << " " << c.mscale_all_dim;
    if (c.factor != 40) continue;
    // Kept, on the ramp, divided by 40.
    EXPECT_NEAR(yarn.inverse[0], 1.0, 1e-7);
    EXPECT_NEAR(yarn.inverse[10], 0.05623412877321243, 1e-8);
    EXPECT_NEAR(yarn.inverse[16], 0.005500000435858965, 1e-9);
    EXPECT_NEAR(yarn.inverse[20], 0.0007905694073997438, 1e-10);
    EXPECT_NEAR(yarn.inverse[31], 3.3338035336782923e-06, 1e-12);
  }
}

// The same for head_dim 16: where the ramp leaves the head at either end, without truncation, and
// the other kinds with all of their bands.
TEST(RopeTest, FrequenciesOfTransformers) {
  RopeConfig yarn;
  yarn.kind = RopeKind::kYarn;
  yarn.factor = 4;
  const auto of = [](RopeConfig rope, double theta, int64_t original) {
    rope.theta = theta;
    rope.original_max_position = original;
    return rope;
  };
  RopeConfig long_ramp = yarn;
  long_ramp.beta_fast = 512;
  RopeConfig untruncated = of(yarn, 10000, 1024);
  untruncated.truncate = false;
  RopeConfig llama3 = of({}, 500, 256);
  llama3.kind = RopeKind::kLlama3;
  llama3.factor = 8;
  llama3.low_freq_factor = 1;
  llama3.high_freq_factor = 4;
  RopeConfig dynamic;
  dynamic.kind = RopeKind::kDynamicNtk;
  dynamic.theta = 10000;
  dynamic.factor = 2;
  struct Case {
    RopeConfig rope;
    int64_t max_position;
    std::vector<double> expected;
  };
  const Case cases[] = {
      {of(yarn, 10000, 128),
       512,
       {1.0, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012,
        7.90569466e-05}},
      {of(long_ramp, 10, 4096),
       16384,
       {1.0, 0.712399542, 0.506107211, 0.358442038, 0.252982199, 0.177853003, 0.124479562,
        0.0866788924}},
      {of(yarn, 10000, 1024),
       4096,
       {1.0, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466, 0.000250000012,
        7.90569466e-05}},
      {untruncated,
       4096,
       {1.0, 0.316227764, 0.0853986368, 0.0191267766, 0.00355697144, 0.000790569466, 0.000250000012,
        7.90569466e-05}},
      {llama3,
       1024,
       {1.0, 0.459863275, 0.21147424, 0.0961796418, 0.0163135789, 0.0025707141, 0.00118217699,
        0.000543639821}},
      {dynamic,
       64,
       {1.0, 0.239481375, 0.057351321, 0.0137345716, 0.00328917382, 0.00078769587, 0.000188638471,
        4.51753949e-05}},
  };
  for (const Case& c : cases) {
    // Dynamic scaling is asked for a sequence of 256.
    const RopeFrequencies got = ComputeRopeFrequencies(c.rope, 16, c.max_position, 256);
    ASSERT_EQ(got.inverse.size(), c.expected.size());
    for (size_t i = 0; i < c.expected.size(); ++i) {
      EXPECT_NEAR(got.inverse[i] / c.expected[i], 1, 2e-6)
          << "case " << &c - cases << " frequency " << i;
    }
  }
}

TEST(RopeTest, BothHalvesOfARotationAreScaled) {
  RopeConfig rope;
  rope.kind = RopeKind::kYarn;
  rope.factor = 4;
  rope.attention_factor = 1.25;
  const RopeTable table({.head_dim = 64, .rotary_dim = 64, .rope = rope}, 4096, 16);
  for (int64_t position = 0; position < 16; ++position) {
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_NEAR(std::hypot(table.cos(position)[i], table.sin(position)[i]), 1.25, 1e-6);
    }
  }
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

// Each position beyond is that of the sequence which ends with it, whatever the longest context is.
TEST(RopeTest, DynamicPositionsBeyondHaveTheirOwnBase) {
  GroupedQuerySpec attention;
  attention.head_dim = attention.rotary_dim = 16;
  attention.rope.kind = RopeKind::kDynamicNtk;
  attention.rope.factor = 2;
  const RopeTable table(attention, 32, 100);
  const RopeTable shorter(attention, 32, 50);
  GroupedQuerySpec plain = attention;
  plain.rope.kind = RopeKind::kDefault;
  const RopeTable original(plain, 32, 32);
  for (int64_t position = 0; position < 100; ++position) {
    const RopeFrequencies own = ComputeRopeFrequencies(attention.rope, 16, 32, position + 1);
    for (int64_t i = 0; i < 8; ++i) {
      const float angle = static_cast<float>(position) * own.inverse[static_cast<size_t>(i)];
      ASSERT_EQ(table.cos(position)[i], static_cast<float>(std::cos(static_cast<double>(angle))));
      if (position < 50) {
        ASSERT_EQ(table.sin(position)[i], shorter.sin(position)[i]);
      }
      if (position < 32) {
        ASSERT_EQ(table.sin(position)[i], original.sin(position)[i]);
      }
    }
  }
}

// A part of a head: the first rotary_dim values of each head turn as those of a head of that size,
// the others pass.
TEST(RopeTest, RotatesTheFirstPartOfEveryHead) {
  constexpr int64_t kHeads = 3;
  for (const auto& [head_dim, rotary_dim] :
       {std::pair<int64_t, int64_t>{24, 12}, {128, 64}, {20, 2}, {16, 16}}) {
    GroupedQuerySpec attention;
    attention.head_dim = head_dim;
    attention.rotary_dim = rotary_dim;
    attention.rope.theta = 1000;
    const RopeTable table(attention, 64, 40);
    EXPECT_EQ(table.bytes(), RopeTable::Bytes(rotary_dim, 40));
    std::vector<float> x(static_cast<size_t>(kHeads * head_dim + 1));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i + 1));
    for (const int64_t position : {0, 1, 39}) {
      std::vector<float> turned = x;
      table.Rotate(KernelsFor(Isa::kScalar), position, kHeads, turned.data());
      EXPECT_EQ(turned.back(), x.back());
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t i = 0; i < head_dim; ++i) {
          const auto at = static_cast<size_t>(head * head_dim + i);
          double expected = x[at];
          if (i < rotary_dim) {
            const int64_t half = rotary_dim / 2;
            const double angle = static_cast<double>(position) *
                                 std::pow(1000.0, -2.0 * static_cast<double>(i % half) /
                                                      static_cast<double>(rotary_dim));
            const double other =
                i < half ? -x[at + static_cast<size_t>(half)] : x[at - static_cast<size_t>(half)];
            expected = x[at] * std::cos(angle) + other * std::sin(angle);
          }
          ASSERT_NEAR(turned[at], expected, 2e-6) << head << "," << i << " at " << position;
          if (i >= rotary_dim) {
            ASSERT_EQ(turned[at], x[at]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
