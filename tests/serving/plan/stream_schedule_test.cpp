// The order in which experts stream past, on a virtual clock.
#include "serving/plan/stream_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

namespace moesaic {
namespace {

StreamPass SomePass() {
  StreamPass pass;
  pass.layers = 8;
  pass.dense_s = 1e-3;
  pass.expert_s = 1e-4;
  pass.resident_active = 16;
  pass.streamed_active = 48;
  pass.load_s = 2e-4;
  pass.buffers = 16;
  pass.group = pass.streamed_group = 4;
  return pass;
}

TEST(StreamScheduleTest, LiesBetweenRooflineAndSerialSum) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 500; ++i) {
    StreamPass pass;
    pass.layers = static_cast<int64_t>(uniform(1, 12));
    pass.dense_s = uniform(0, 2e-3);
    pass.lead_s = uniform(0, 1e-3);
    pass.other_s = uniform(0, 3e-3);
    pass.expert_s = uniform(1e-6, 3e-4);
    pass.resident_active = uniform(0, 40);
    pass.streamed_active = uniform(0, 40);
    pass.load_s = uniform(1e-6, 4e-4);
    pass.buffers = static_cast<int64_t>(uniform(1, 50));
    pass.group = static_cast<int64_t>(uniform(1, 8));
    pass.streamed_group = static_cast<int64_t>(uniform(1, 8));
    pass.contended_link_share = uniform(0.4, 1);
    pass.contended_compute_share = uniform(0.4, 1);
    pass.cold = i % 3 == 0;
    const StreamPassTimes times = SimulateStreamPass(pass);
    SCOPED_TRACE(i);
    EXPECT_NEAR(times.dense_s + times.experts_s + times.other_s + times.stall_s, times.seconds,
                1e-9);
    EXPECT_LE(times.link_s, times.seconds + 1e-9);
    const double busy = times.dense_s + times.experts_s + times.other_s;
    EXPECT_GE(busy, times.compute_alone_s - 1e-9);
    EXPECT_LE(busy, times.compute_alone_s / pass.contended_compute_share + 1e-9);
    // A load that is under way when the pass ends counts for it as a whole.
    const double edge = pass.load_s / pass.contended_link_share;
    EXPECT_GE(times.seconds, times.roofline_s() - edge - 1e-9);
    EXPECT_LE(times.seconds, times.compute_alone_s / pass.contended_compute_share +
                                 times.link_alone_s / pass.contended_link_share + edge + 1e-9);
  }
}

TEST(StreamScheduleTest, TheLongerSideIsTheWholeTime) {
  StreamPass pass = SomePass();
  pass.load_s = 1e-3;  // the link is the limit
  StreamPassTimes times = SimulateStreamPass(pass);
  EXPECT_NEAR(times.loads, 8 * 48, 1);
  EXPECT_NEAR(times.seconds / times.link_alone_s, 1, 0.03);
  EXPECT_GT(times.stall_s, 0);
  pass.load_s = 1e-6;  // computing is
  times = SimulateStreamPass(pass);
  EXPECT_NEAR(times.seconds / times.compute_alone_s, 1, 0.01);
  EXPECT_NEAR(times.seconds, 8 * (1e-3 + 64e-4), 1e-4);
}

TEST(StreamScheduleTest, WithoutStreamingNothingWaits) {
  StreamPass pass = SomePass();
  pass.streamed_active = 0;
  pass.buffers = 0;
  const StreamPassTimes times = SimulateStreamPass(pass);
  EXPECT_EQ(times.loads, 0);
  EXPECT_EQ(times.stall_s, 0);
  EXPECT_NEAR(times.seconds, 8 * (1e-3 + 16e-4), 1e-9);
}

TEST(StreamScheduleTest, AFirstPassReadsResidentsToo) {
  StreamPass pass = SomePass();
  pass.cold = true;
  const StreamPassTimes times = SimulateStreamPass(pass);
  // Up to a pass ahead, what the buffers hold.
  EXPECT_GE(times.loads, 8 * 64);
  EXPECT_LE(times.loads, 8 * 64 + 16);
}

TEST(StreamScheduleTest, MoreBuffersNeverHurtAndContentionDoes) {
  StreamPass pass = SomePass();
  pass.dense_s = 5e-3;  // long enough to read ahead under
  double last = 1e9;
  for (const int64_t buffers : {1, 2, 4, 8, 16, 48}) {
    pass.buffers = buffers;
    const double seconds = SimulateStreamPass(pass).seconds;
    EXPECT_LE(seconds, last * 1.01) << buffers;
    last = std::min(last, seconds);
  }
  pass.contended_compute_share = 0.7;
  EXPECT_GT(SimulateStreamPass(pass).seconds, last);
}

TEST(StreamScheduleTest, GroupsAreTheEngines) {
  EXPECT_EQ(StreamedGroup(1 << 20, 64), 4);
  EXPECT_EQ(StreamedGroup(1 << 20, 3), 1);
  EXPECT_EQ(StreamedGroup(64 << 20, 64), 1);
  EXPECT_EQ(ResidentGroup(1 << 20, 64, 128), 4);
  EXPECT_EQ(ResidentGroup(1 << 20, 3, 128), 4);
  EXPECT_EQ(ResidentGroup(64 << 20, 64, 128), 1);
  EXPECT_EQ(ResidentGroup(1 << 20, 0, 128), 128);
}

}  // namespace
}  // namespace moesaic
