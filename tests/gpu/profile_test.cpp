// What `moesaic profile` measures of a device that computes: everything it was asked for, and no
// rate of nothing. Linked twice, as the model's test is. How large the rates are is for benches.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "serving/plan/device_measuring.h"
#include "tests/gpu/kernel_machine.h"

namespace moesaic {
namespace {

TEST(DeviceMeasuringTest, CopiesAndExpertsOfADeviceThatComputes) {
  const DeviceAmounts amounts = {.rounds = 2,
                                 .round_s = 0,
                                 .copy_bytes = 1 << 20,
                                 .hidden = 64,
                                 .intermediate = 32,
                                 .experts = 3,
                                 .packets = {1 << 16, 1 << 18},
                                 .rows = {1, 5},
                                 .types = {WeightType::kBf16, WeightType::kInt4}};
  std::string why_not;
  const auto machine = MakeKernelMachine(MeasuredDeviceBytes(amounts), why_not);
  if (machine == nullptr) GTEST_SKIP() << "SKIPPED: " << why_not;
  ThreadPool pool(2);
  const DeviceProfile profile = MeasureDevice(machine->device(), "a model", &machine->kernels(),
                                              pool, amounts, [](std::string_view) {});
  EXPECT_EQ(profile.name, machine->device().name());
  EXPECT_EQ(profile.model, "a model");
  ASSERT_EQ(profile.copies.size(), 2u);
  for (const CopyRate& rate : profile.copies) {
    EXPECT_GT(rate.to_device.value, 0);
    EXPECT_GT(rate.to_device_loaded.value, 0);
    EXPECT_GT(rate.to_host.value, 0);
  }
  for (const auto& rates : {profile.on_host, profile.on_device}) {
    ASSERT_EQ(rates.size(), 4u);
    EXPECT_EQ(rates[1].weights, "bf16");
    EXPECT_EQ(rates[1].rows, 5);
    EXPECT_EQ(rates[2].weights, "int4");
    for (const ExpertRate& rate : rates) {
      EXPECT_GT(rate.alone.value, 0);
      EXPECT_GT(rate.loaded.value, 0);
      EXPECT_EQ(rate.loaded.unit, "byte/s");
      EXPECT_FALSE(rate.loaded.how.empty());
    }
  }
}

}  // namespace
}  // namespace moesaic
