// MeasureDevice on an emulated device out of which the host computes: a link is never faster than
// it says, also not by what is measured of it.

#include "serving/plan/device_measuring.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/core/device/emulated_machine.h"

namespace moesaic {
namespace {

DeviceAmounts Small() {
  return {.rounds = 2,
          .round_s = 0.001,
          .copy_bytes = 1 << 20,
          .hidden = 64,
          .intermediate = 32,
          .experts = 3,
          .packets = {1 << 16, 1 << 20},
          .rows = {1, 5},
          .types = {WeightType::kBf16, WeightType::kInt8}};
}

EmulatedDeviceOptions Link() {
  EmulatedDeviceOptions options;
  options.capacity_bytes = MeasuredDeviceBytes(Small());
  options.host_to_device = {0.5e9, 20};
  options.device_to_host = {1e9, 20};
  return options;
}

TEST(DeviceMeasuringTest, NoLinkIsFasterThanItIs) {
  EmulatedMachine machine(TestTime::kReal, 1, Link());
  ThreadPool pool(2);
  std::set<std::string> stages;
  const DeviceProfile profile =
      MeasureDevice(machine.device(0), "emulated", nullptr, pool, Small(),
                    [&](std::string_view stage) { stages.emplace(stage); });
  EXPECT_EQ(profile.name, "emulated:0");
  ASSERT_EQ(profile.copies.size(), 2u);
  for (const CopyRate& rate : profile.copies) {
    // Latency and time of the model; nanoseconds are rounded.
    const double packet_bytes = rate.packet_bytes;
    const double most_in = packet_bytes / (20e-6 + packet_bytes / 0.5e9) * 1.001;
    const double most_out = packet_bytes / (20e-6 + packet_bytes / 1e9) * 1.001;
    for (const Measured& in : {rate.to_device, rate.to_device_loaded}) {
      EXPECT_GT(in.low, 0);
      EXPECT_LE(in.low, in.value);
      EXPECT_LE(in.high, most_in);
      EXPECT_EQ(in.unit, "byte/s");
    }
    EXPECT_GT(rate.to_host.low, 0);
    EXPECT_LE(rate.to_host.high, most_out);
  }
  EXPECT_NE(profile.copies[0].to_device_loaded.how.find("while the host computes"),
            std::string::npos);
  ASSERT_EQ(profile.on_host.size(), 4u);
  for (const ExpertRate& rate : profile.on_host) {
    EXPECT_GT(rate.alone.value, 0);
    EXPECT_GT(rate.loaded.value, 0);
  }
  EXPECT_TRUE(profile.on_device.empty());
  EXPECT_EQ(stages.size(), 4u);
  // What was measured survives its file.
  HardwareProfile all;
  all.devices = {profile};
  const std::string text = SerializeProfile(all);
  EXPECT_EQ(SerializeProfile(ParseProfile(text, "p")), text);
}

TEST(DeviceMeasuringTest, ADeviceThatFailsIsAnError) {
  EmulatedDeviceOptions options = Link();
  options.faults = {.lost_at_copy = 30};
  EmulatedMachine lost(TestTime::kReal, 1, options);
  ThreadPool pool(1);
  EXPECT_THROW(MeasureDevice(lost.device(0), "", nullptr, pool, Small(), [](std::string_view) {}),
               Error);
  options = Link();
  options.capacity_bytes = 1 << 19;
  EmulatedMachine small(TestTime::kReal, 1, options);
  EXPECT_THROW(MeasureDevice(small.device(0), "", nullptr, pool, Small(), [](std::string_view) {}),
               Error);
}

}  // namespace
}  // namespace moesaic
