// What tests of engines on GPUs skip, on machines that are not at hand.
#include "tests/gpu/engine_machine.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(WhyTooFewGpusTest, CountsThem) {
  CudaMachine machine;
  machine.why_none = "no driver";
  EXPECT_EQ(WhyTooFewGpus(machine, 1), "no driver");
  machine = {.devices = {CudaDeviceInfo{}}, .why_none = ""};
  EXPECT_EQ(WhyTooFewGpus(machine, 0), "");
  EXPECT_EQ(WhyTooFewGpus(machine, 1), "");
  EXPECT_EQ(WhyTooFewGpus(machine, 2), "this needs 2 GPUs, and there is one");
  machine.devices.push_back({});
  EXPECT_EQ(WhyTooFewGpus(machine, 2), "");
  EXPECT_EQ(WhyTooFewGpus(machine, 3), "this needs 3 GPUs, and there are 2");
}

}  // namespace
}  // namespace moesaic
