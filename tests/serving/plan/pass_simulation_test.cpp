// A pass on a virtual clock, with a device and without: cases whose times are known, and bounds
// that always hold.
#include "serving/plan/pass_simulation.h"

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
PlannedPass SomePass() {
  PlannedPass pass;
  pass.device = true;
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
PlannedPass Streaming() {
  PlannedPass pass = SomePass();
  pass.slots = 24;
  pass.buffers = 8;
  return pass;
}

TEST(PassSimulationTest, OneGroupGoesFromTaskToTask) {
  PlannedPass pass = SomePass();
  pass.other_s = 7e-3;
  const PassTimes times = SimulatePass(pass);
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

TEST(PassSimulationTest, ALayerWithoutExpertsHasItsOwnProduct) {
  PlannedPass pass = SomePass();
  pass.layer_is_sparse = {0, 1, 1, 1};
  pass.dense_mlp_s = 2e-2;
  EXPECT_NEAR(SimulatePass(pass).seconds, 4 * kLayerAlone + 3 * 6e-4 + 2e-2, 1e-12);
}

// One group's attention beside the other one's projections, where there are processors for both.
TEST(PassSimulationTest, TwoGroupsOverlap) {
  PlannedPass pass = SomePass();
  pass.layer_is_sparse = {1};
  pass.groups = 2;
  pass.offload_qkv_s = pass.load_hidden_s = 1e-6;  // some
  pass.pre_attention_s = pass.attention_s = pass.post_attention_s = 1e-3;
  pass.active = pass.visit_active = pass.repeated = 1;
  // pre 0, pre 1 | attention 0, attention 1 | post 0, post 1: each behind its group's.
  EXPECT_NEAR(SimulatePass(pass).seconds, 4e-3 + 1e-4, 1e-5);
  pass.both_share = 0.5;  // one processor
  EXPECT_NEAR(SimulatePass(pass).seconds, 6e-3 + 1e-4, 1e-5);
}

TEST(PassSimulationTest, ASlowLinkIsTheWholeTime) {
  PlannedPass pass = Streaming();
  pass.load_s = 0.1;
  pass.packets = 100;
  const PassTimes times = SimulatePass(pass);
  // Of each layer's 8 experts 4 are residents, of which half of what is used is.
  EXPECT_EQ(times.loads, 4 * 3);
  EXPECT_NEAR(times.seconds / times.link_alone_s, 1, 1e-3);
  EXPECT_GT(times.stall_s, 0.9 * times.seconds);
  EXPECT_NEAR(times.link_s, times.seconds, 1e-9);
}

TEST(PassSimulationTest, WhatIsNotRepeatedIsReadForNothing) {
  PlannedPass pass = Streaming();
  const double right = SimulatePass(pass).loads;
  EXPECT_EQ(right, 4 * 3);
  pass.repeated = 4;
  EXPECT_GT(SimulatePass(pass).loads, right);
  // A link that has no time to read ahead wastes none.
  pass.load_s = 0.1;
  pass.packets = 100;
  EXPECT_EQ(SimulatePass(pass).loads, right);
}

TEST(PassSimulationTest, HiddenStatesWaitBehindOnePacketAtMost) {
  PlannedPass pass = Streaming();
  pass.groups = 2;
  pass.load_s = 0.1;
  pass.packets = 10;
  pass.loads_ahead = 4;
  const double one_at_most = 2 * 4 * (pass.load_hidden_s + pass.load_s / pass.packets);
  EXPECT_LE(SimulatePass(pass).hidden_in_s, one_at_most + 1e-9);
  EXPECT_GT(SimulatePass(pass).hidden_in_s, 2 * 4 * pass.load_hidden_s);
}

TEST(PassSimulationTest, SeveralDevicesShareALayersExperts) {
  PlannedPass pass = SomePass();
  pass.devices = 2;
  pass.active = pass.visit_active = pass.repeated = 8;  // four for each
  EXPECT_NEAR(SimulatePass(pass).seconds, 4 * (kLayerAlone + 4e-4), 1e-12);
  EXPECT_NEAR(SimulatePass(pass).experts_s, 4 * 8e-4, 1e-12);
  // On as many processors as one of them has threads the two take as long as one.
  pass.both_share = 0.5;
  EXPECT_NEAR(SimulatePass(pass).seconds, 4 * (kLayerAlone + 8e-4), 1e-12);
  // Links of their own, which are the limit.
  pass.both_share = 1;
  pass.slots = 12;
  pass.buffers = 4;
  pass.load_s = 0.1;
  pass.packets = 100;
  const PassTimes times = SimulatePass(pass);
  EXPECT_EQ(times.loads, 4 * 4);
  EXPECT_NEAR(times.seconds, 4 * 2 * pass.load_s, 0.02);
}

TEST(PassSimulationTest, AFirstPassReadsResidentsToo) {
  PlannedPass pass = Streaming();
  const double later = SimulatePass(pass).loads;
  pass.cold = true;
  EXPECT_GE(SimulatePass(pass).loads, later + 4 * 3);
}

// What two visits of a layer share is read once, if the buffers hold it.
TEST(PassSimulationTest, VisitsShareWhatTheBuffersHold) {
  PlannedPass pass = Streaming();
  pass.schedule = ScheduleKind::kPagedWeights;
  pass.groups = 4;
  pass.visit_active = 4;
  pass.loads_ahead = 1;
  EXPECT_EQ(SimulatePass(pass).loads, 4 * 3);
  pass.slots = 17;
  pass.buffers = 1;
  EXPECT_GT(SimulatePass(pass).loads, 4 * 3);
}

// Eight layers in host memory, of whose 64 experts 16 are residents.
PlannedPass HostPass() {
  PlannedPass pass;
  pass.layer_is_sparse.assign(8, 1);
  pass.num_experts = 64;
  pass.pre_attention_s = 3e-4;
  pass.attention_s = 5e-4;
  pass.post_attention_s = 2e-4;
  pass.expert_s = 1e-4;
  pass.active = pass.visit_active = pass.repeated = 64;
  pass.slots = 8 * 16 + 16;
  pass.buffers = 16;
  pass.group = 4;
  pass.load_s = 2e-4;
  return pass;
}

TEST(PassSimulationTest, OnTheHostTheLongerSideIsTheWholeTime) {
  PlannedPass pass = HostPass();
  pass.load_s = 1e-3;  // the link is the limit
  PassTimes times = SimulatePass(pass);
  EXPECT_EQ(times.loads, 8 * 48);
  EXPECT_NEAR(times.seconds / times.link_alone_s, 1, 0.03);
  EXPECT_GT(times.stall_s, 0);
  pass.load_s = 1e-6;  // computing is
  times = SimulatePass(pass);
  EXPECT_NEAR(times.seconds / times.compute_alone_s, 1, 0.01);
  EXPECT_NEAR(times.seconds, 8 * (1e-3 + 64e-4), 1e-4);
}

TEST(PassSimulationTest, OnTheHostWithAllExpertsThereNothingWaits) {
  PlannedPass pass = HostPass();
  pass.slots = 8 * 64;
  pass.buffers = 0;
  const PassTimes times = SimulatePass(pass);
  EXPECT_EQ(times.loads, 0);
  EXPECT_EQ(times.stall_s, 0);
  EXPECT_NEAR(times.seconds, 8 * (1e-3 + 64e-4), 1e-9);
}

TEST(PassSimulationTest, OnTheHostAFirstPassReadsResidentsToo) {
  PlannedPass pass = HostPass();
  pass.cold = true;
  const PassTimes times = SimulatePass(pass);
  // Up to a pass ahead, what the buffers hold.
  EXPECT_GE(times.loads, 8 * 64);
  EXPECT_LE(times.loads, 8 * 64 + 16);
}

TEST(PassSimulationTest, MoreBuffersNeverHurtAndContentionDoes) {
  PlannedPass pass = HostPass();
  pass.attention_s = 5e-3;  // long enough to read ahead under
  double last = 1e9;
  for (const int64_t buffers : {1, 2, 4, 8, 16, 48}) {
    pass.buffers = buffers;
    pass.slots = 8 * 16 + buffers;
    const double seconds = SimulatePass(pass).seconds;
    EXPECT_LE(seconds, last * 1.01) << buffers;
    last = std::min(last, seconds);
  }
  pass.copy_share = 0.7;
  EXPECT_GT(SimulatePass(pass).seconds, last);
  pass.load_s = 1e-3;
  const double alone = SimulatePass(pass).seconds;
  pass.link_share = 0.7;
  EXPECT_GT(SimulatePass(pass).seconds, alone);
}

TEST(PassSimulationTest, LiesBetweenRooflineAndSerialSum) {
  const unsigned seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 400; ++i) {
    PlannedPass pass;
    pass.device = i % 8 < 4;
    pass.devices = i % 8 < 2 ? 1 + i % 3 : 1;
    pass.device_share = uniform(0.3, 1);
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
    pass.link_share = uniform(0.5, 1);
    pass.cold = i % 3 == 0;
    const PassTimes times = SimulatePass(pass);
    SCOPED_TRACE(i);
    // The host and each device at once.
    const double devices = pass.devices;
    const double sides = pass.device ? 1 + devices : 1;
    const double edge = 5 * pass.load_s / pass.link_share;
    EXPECT_GE(times.seconds,
              std::max(times.compute_alone_s / sides, times.link_alone_s / devices - edge) - 1e-9);
    double links = times.link_alone_s / pass.link_share;
    if (pass.device) {
      links += static_cast<double>(pass.layer_is_sparse.size()) * pass.groups * pass.offload_qkv_s;
    } else {
      EXPECT_NEAR(times.dense_s + times.experts_s + times.other_s + times.stall_s, times.seconds,
                  1e-9);
    }
    EXPECT_LE(times.seconds,
              times.compute_alone_s / pass.copy_share + links + devices * edge + 1e-9);
    EXPECT_LE(times.link_s, devices * times.seconds + 1e-9);
    EXPECT_LE(times.stall_s, devices * times.seconds + 1e-9);
  }
}

}  // namespace
}  // namespace moesaic
