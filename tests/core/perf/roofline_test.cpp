#include "core/perf/roofline.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(RooflineTest, ATaskTakesTheLongerOfTheTwo) {
  constexpr MemoryLevel kHost{1.3e12, 100e9};
  EXPECT_DOUBLE_EQ(TaskSeconds(kHost, 100e9, 2.6e12), 2);
  EXPECT_DOUBLE_EQ(TaskSeconds(kHost, 300e9, 2.6e12), 3);
}

TEST(RooflineTest, TokensThatHideACopy) {
  // MoE-Gen Fig. 3: 65 TFLOP/s and 32 GB/s.
  EXPECT_NEAR(TokensThatHideExpert(65e12, 32e9, 2), 2031, 0.5);
  // MoE-Lens on an A40, a layer of Mixtral (Eq. 2).
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(150e12, 32e9, 2) * 8 / 2, 18750);
  // Published with 1 TFLOP/s = 1024 GFLOP/s.
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(150 * 1024e9, 32e9, 2) * 4, 19200);
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(181 * 1024e9, 32e9, 2) * 4, 23168);
  EXPECT_DOUBLE_EQ(TokensThatHideExpert(312 * 1024e9, 32e9, 2) * 4, 39936);
}

}  // namespace
}  // namespace moesaic
