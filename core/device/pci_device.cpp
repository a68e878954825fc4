#include "core/device/pci_device.h"

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {

std::string NormalPciBusId(std::string_view bus_id) {
  std::string id(bus_id);
  std::transform(id.begin(), id.end(), id.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const size_t colon = id.find(':');
  // The domain has four digits in sysfs, eight in some of NVIDIA's tools.
  if (colon != std::string::npos && colon > 4 && id.find_first_not_of('0') >= colon - 4) {
    id.erase(0, colon - 4);
  }
  return id;
}

int PciNumaNode(const std::filesystem::path& sysfs, std::string_view bus_id) {
  const std::string id = NormalPciBusId(bus_id);
  if (id.empty() || id.find('/') != std::string::npos) return -1;
  try {
    const std::string text = ReadTextFile(sysfs / "bus/pci/devices" / id / "numa_node", 64);
    int node = -1;
    std::from_chars(text.data(), text.data() + text.size(), node);
    return std::max(node, -1);
  } catch (const Error&) {
    return -1;  // a machine without PCI in sysfs
  }
}

}  // namespace moesaic
