#include "core/perf/roofline.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

// The L4 of MoE-Lightning's plots: 300 GB/s and 242 TFLOP/s, CPU 100 GB/s and 1.3 TFLOP/s, 16 GB/s.
constexpr MemoryLevel kDevice{242e12, 300e9};
constexpr MemoryLevel kHost{1.3e12, 100e9};
constexpr double kLink = 16e9;

TEST(RooflineTest, AttentionBelongsWhereItsKeysAre) {
  // P1 strictly after Eq. 9 for f16 attention (intensity 2): the CPU's memory bounds it.
  EXPECT_DOUBLE_EQ(ComputeInPlaceBelow(kHost, 2.0, kLink), 12.5);
  // The paper's plot leaves that bound out.
  EXPECT_DOUBLE_EQ(ComputeInPlaceBelow(kHost, 1e9, kLink), 81.25);
  EXPECT_LT(2.0, ComputeInPlaceBelow(kHost, 2.0, kLink));
}

TEST(RooflineTest, FigureFiveBalance) {
  // mu = 128: intensity 31.95 in device memory.
  EXPECT_NEAR(LinkBoundBelow(kDevice, 31.95, kLink), 599, 0.5);
  EXPECT_NEAR(BalanceIntensity(kDevice, 31.95, kLink), 599, 0.5);
  EXPECT_DOUBLE_EQ(BalanceMicroBatches(0, 300e9, 16e9), 18.75);
  EXPECT_DOUBLE_EQ(BalanceMicroBatches(0.5, 300e9, 16e9), 9.375);
}

TEST(RooflineTest, AttainableRateIsTheLeastOfThree) {
  EXPECT_DOUBLE_EQ(AttainableOverLink(kDevice, 1e6, kLink, 1e6), 242e12);
  EXPECT_DOUBLE_EQ(AttainableOverLink(kDevice, 10, kLink, 1e6), 3e12);
  EXPECT_DOUBLE_EQ(AttainableOverLink(kDevice, 1e6, kLink, 100), 1.6e12);
  EXPECT_DOUBLE_EQ(AttainableFlopPerS(kHost, RidgeIntensity(kHost)), 1.3e12);
  EXPECT_DOUBLE_EQ(TaskSeconds(kHost, 100e9, 2.6e12), 2);
  EXPECT_DOUBLE_EQ(TaskSeconds(kHost, 300e9, 2.6e12), 3);
}

TEST(RooflineTest, TokensThatHideACopy) {
  // MoE-Gen Fig. 3: 65 TFLOP/s and 32 GB/s.
  EXPECT_NEAR(TokensThatHideExpert(65e12, 32e9, 2), 2031, 0.5);
  // MoE-Lens on an A40, a layer of Mixtral: Eq. 2, and in full by Eq. 1.
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(150e12, 32e9, 2) * 8 / 2, 18750);
  EXPECT_NEAR(150e12 / 32e9 / LayerIntensity(1, 3.5, 4, 8, 2), 17254, 0.5);
  EXPECT_NEAR(LayerIntensity(1, 3.5, 4, 8, 2), 0.27168, 5e-6);
  // Attention left out: k / E.
  EXPECT_NEAR(LayerIntensity(1, 1e9, 4, 8, 2), 0.25, 1e-9);
  // Published with 1 TFLOP/s = 1024 GFLOP/s.
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(150 * 1024e9, 32e9, 2) * 4, 19200);
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(181 * 1024e9, 32e9, 2) * 4, 23168);
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(312 * 1024e9, 32e9, 2) * 4, 39936);
}

}  // namespace
}  // namespace moesaic
