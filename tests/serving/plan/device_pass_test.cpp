// A pass with a device on a virtual clock: cases whose times are known, and bounds that always
// hold.
#include "serving/plan/device_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

namespace moesaic {
namespace {

constexpr std::array kSchedules = {ScheduleKind::kModuleBatching, ScheduleKind::kPagedWeights,
                                   ScheduleKind::kOverlapped};
constexpr double kLayerAlone = 1e-3 + 2e-3 + 3e-3 + 4e-3 + 5e-3;  // one group's, one after another

// Four layers of eight experts, all of them on the device.
DevicePass SomeDevicePass() {
  DevicePass pass;
  pass.layer_is_sparse = {1, 1, 1, 1};
  pass.num_experts = 8;
  pass.pre_attention_s = 1e-3;
  pass.offload_qkv_s = 2e-3;
  pass.attention_s = 3e-3;
  pass.load_hidden_s = 4e-3;
  pass.post_attention_s = 5e-3;
  pass.expert_s = 1e-4;
  pass.active = pass.visit_active = pass.repeated = 6;
  pass.slots = 32;
  pass.group = 2;
  pass.load_s = 1e-3;
  return pass;
}

// As many experts stream as not.
DevicePass Streaming() {
  DevicePass pass = SomeDevicePass();
  pass.slots = 24;
  pass.buffers = 8;
  return pass;
}

TEST(DevicePassTest, OneGroupGoesFromTaskToTask) {
  DevicePass pass = SomeDevicePass();
  pass.other_s = 7e-3;
  const StreamPassTimes times = SimulateDevicePass(pass);
  EXPECT_NEAR(times.seconds, 4 * (kLayerAlone + 6e-4) + 7e-3, 1e-12);
  EXPECT_NEAR(times.dense_s, 4 * 9e-3, 1e-12);
  EXPECT_NEAR(times.experts_s, 4 * 6e-4, 1e-12);
  EXPECT_NEAR(times.hidden_out_s, 4 * 2e-3, 1e-12);
  EXPECT_NEAR(times.hidden_in_s, 4 * 4e-3, 1e-12);
  EXPECT_NEAR(times.other_s, 7e-3, 1e-12);
  EXPECT_EQ(times.loads, 0);
  EXPECT_EQ(times.stall_s, 0);
  EXPECT_NEAR(times.compute_alone_s, 4 * (9e-3 + 6e-4) + 7e-3, 1e-12);
}

TEST(DevicePassTest, ALayerWithoutExpertsHasItsOwnProduct) {
  DevicePass pass = SomeDevicePass();
  pass.layer_is_sparse = {0, 1, 1, 1};
  pass.dense_mlp_s = 2e-2;
  EXPECT_NEAR(SimulateDevicePass(pass).seconds, 4 * kLayerAlone + 3 * 6e-4 + 2e-2, 1e-12);
}

// One group's attention beside the other one's projections, where there are processors for both.
TEST(DevicePassTest, TwoGroupsOverlap) {
  DevicePass pass = SomeDevicePass();
  pass.layer_is_sparse = {1};
  pass.groups = 2;
  pass.offload_qkv_s = pass.load_hidden_s = 1e-6;  // some
  pass.pre_attention_s = pass.attention_s = pass.post_attention_s = 1e-3;
  pass.active = pass.visit_active = pass.repeated = 1;
  // pre 0, pre 1 | attention 0, attention 1 | post 0, post 1: each behind its group's.
  EXPECT_NEAR(SimulateDevicePass(pass).seconds, 4e-3 + 1e-4, 1e-5);
  pass.both_share = 0.5;  // one processor
  EXPECT_NEAR(SimulateDevicePass(pass).seconds, 6e-3 + 1e-4, 1e-5);
}

TEST(DevicePassTest, ASlowLinkIsTheWholeTime) {
  DevicePass pass = Streaming();
  pass.load_s = 0.1;
  pass.packets = 100;
  const StreamPassTimes times = SimulateDevicePass(pass);
  // Of each layer's 8 experts 4 are residents, of which half of what is used is.
  EXPECT_EQ(times.loads, 4 * 3);
  EXPECT_NEAR(times.seconds / times.link_alone_s, 1, 1e-3);
  EXPECT_GT(times.stall_s, 0.9 * times.seconds);
  EXPECT_NEAR(times.link_s, times.seconds, 1e-9);
}

TEST(DevicePassTest, WhatIsNotRepeatedIsReadForNothing) {
  DevicePass pass = Streaming();
  const double right = SimulateDevicePass(pass).loads;
  EXPECT_EQ(right, 4 * 3);
  pass.repeated = 4;
  EXPECT_GT(SimulateDevicePass(pass).loads, right);
  // A link that has no time to read ahead wastes none.
  pass.load_s = 0.1;
  pass.packets = 100;
  EXPECT_EQ(SimulateDevicePass(pass).loads, right);
}

TEST(DevicePassTest, HiddenStatesWaitBehindOnePacketAtMost) {
  DevicePass pass = Streaming();
  pass.groups = 2;
  pass.load_s = 0.1;
  pass.packets = 10;
  pass.loads_ahead = 4;
  const double one_at_most = 2 * 4 * (pass.load_hidden_s + pass.load_s / pass.packets);
  EXPECT_LE(SimulateDevicePass(pass).hidden_in_s, one_at_most + 1e-9);
  EXPECT_GT(SimulateDevicePass(pass).hidden_in_s, 2 * 4 * pass.load_hidden_s);
}

TEST(DevicePassTest, AFirstPassReadsResidentsToo) {
  DevicePass pass = Streaming();
  const double later = SimulateDevicePass(pass).loads;
  pass.cold = true;
  EXPECT_GE(SimulateDevicePass(pass).loads, later + 4 * 3);
}

// What two visits of a layer share is read once, if the buffers hold it.
TEST(DevicePassTest, VisitsShareWhatTheBuffersHold) {
  DevicePass pass = Streaming();
  pass.schedule = ScheduleKind::kPagedWeights;
  pass.groups = 4;
  pass.visit_active = 4;
  pass.loads_ahead = 1;
  EXPECT_EQ(SimulateDevicePass(pass).loads, 4 * 3);
  pass.slots = 17;
  pass.buffers = 1;
  EXPECT_GT(SimulateDevicePass(pass).loads, 4 * 3);
}

TEST(DevicePassTest, LiesBetweenRooflineAndSerialSum) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 200; ++i) {
    DevicePass pass;
    pass.schedule = kSchedules[static_cast<size_t>(i) % kSchedules.size()];
    pass.groups = pass.schedule == ScheduleKind::kOverlapped ? 2 : static_cast<int>(uniform(1, 6));
    pass.layer_is_sparse.assign(static_cast<size_t>(uniform(1, 8)), 1);
    if (i % 4 == 0) pass.layer_is_sparse.insert(pass.layer_is_sparse.begin(), 0);
    const auto sparse = std::count(pass.layer_is_sparse.begin(), pass.layer_is_sparse.end(), 1);
    pass.num_experts = static_cast<int64_t>(uniform(2, 20));
    pass.pre_attention_s = uniform(1e-6, 2e-3);
    pass.offload_qkv_s = uniform(1e-6, 1e-3);
    pass.attention_s = uniform(1e-6, 3e-3);
    pass.load_hidden_s = uniform(1e-6, 1e-3);
    pass.post_attention_s = uniform(1e-6, 2e-3);
    pass.dense_mlp_s = uniform(0, 1e-3);
    pass.expert_s = uniform(1e-6, 3e-4);
    pass.active = uniform(1, static_cast<double>(pass.num_experts));
    pass.visit_active =
        pass.schedule == ScheduleKind::kModuleBatching ? pass.active : uniform(1, pass.active);
    pass.repeated =
        uniform(pass.active * pass.active / static_cast<double>(pass.num_experts), pass.active);
    pass.other_s = uniform(0, 1e-3);
    pass.buffers = static_cast<int64_t>(uniform(1, 12));
    pass.slots = pass.buffers +
                 static_cast<int64_t>(uniform(0, static_cast<double>(sparse * pass.num_experts)));
    pass.group = static_cast<int64_t>(uniform(1, 5));
    pass.load_s = uniform(1e-6, 1e-3);
    pass.packets = static_cast<int>(uniform(1, 4));
    pass.loads_ahead = static_cast<int64_t>(uniform(1, 5));
    pass.both_share = uniform(0.5, 1);
    pass.copy_share = uniform(0.5, 1);
    pass.cold = i % 3 == 0;
    const StreamPassTimes times = SimulateDevicePass(pass);
    SCOPED_TRACE(i);
    // Both sides at once are at most two threads of tasks.
    const double edge = 5 * pass.load_s;
    EXPECT_GE(times.seconds, std::max(times.compute_alone_s / 2, times.link_alone_s - edge) - 1e-9);
    const double links = times.link_alone_s + static_cast<double>(pass.layer_is_sparse.size()) *
                                                  pass.groups * pass.offload_qkv_s;
    EXPECT_LE(times.seconds, times.compute_alone_s / pass.copy_share + links + edge + 1e-9);
    EXPECT_LE(times.link_s, times.seconds + 1e-9);
    EXPECT_LE(times.stall_s, times.seconds + 1e-9);
  }
}

}  // namespace
}  // namespace moesaic
