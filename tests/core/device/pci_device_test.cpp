#include "core/device/pci_device.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

TEST(PciDeviceTest, BusIdsAreSpeltAsInSysfs) {
  EXPECT_EQ(NormalPciBusId("0000:1B:00.0"), "0000:1b:00.0");
  EXPECT_EQ(NormalPciBusId("00000000:AF:00.0"), "0000:af:00.0");
  EXPECT_EQ(NormalPciBusId("00000001:AF:00.0"), "0001:af:00.0");
  EXPECT_EQ(NormalPciBusId("00010000:AF:00.0"), "00010000:af:00.0");  // a domain of five digits
  EXPECT_EQ(NormalPciBusId(""), "");
}

TEST(PciDeviceTest, NodeAsTheKernelSays) {
  const TempDir sysfs;
  const auto add = [&](const std::string& id, const std::string& text) {
    const auto folder = sysfs.path() / "bus/pci/devices" / id;
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "numa_node") << text;
  };
  add("0000:1b:00.0", "1\n");
  add("0000:1c:00.0", "-1\n");
  add("0000:1d:00.0", "rubbish");
  EXPECT_EQ(PciNumaNode(sysfs.path(), "0000:1B:00.0"), 1);
  EXPECT_EQ(PciNumaNode(sysfs.path(), "0000:1C:00.0"), -1);
  EXPECT_EQ(PciNumaNode(sysfs.path(), "0000:1D:00.0"), -1);
  EXPECT_EQ(PciNumaNode(sysfs.path(), "0000:1e:00.0"), -1);
  EXPECT_EQ(PciNumaNode(sysfs.path(), ""), -1);
  EXPECT_EQ(PciNumaNode(sysfs.path(), "../0000:1b:00.0"), -1);
}

}  // namespace
}  // namespace moesaic
