// What Linux says about a PCI device.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace moesaic {

// "0000:1b:00.0" as sysfs spells it, from "00000000:1B:00.0" and the like.
std::string NormalPciBusId(std::string_view bus_id);

// The NUMA node that a PCI device is attached to, -1 when the machine does not say. `sysfs` is
// "/sys" but in tests.
int PciNumaNode(const std::filesystem::path& sysfs, std::string_view bus_id);

}  // namespace moesaic
