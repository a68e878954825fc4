// Emulated devices for an engine.
#include <fmt/format.h>

#include <utility>

#include "serving/online/device_backend.h"

namespace moesaic {

namespace {

class Emulated final : public DeviceBackend {
 public:
  bool in_host_memory() const override { return true; }
  const cuda::Kernels* Kernels(const DeviceOptions& options) const override {
    return options.emulated_kernels;
  }
  EngineDevices Make(const DeviceOptions& options,
                     std::span<const DevicePlan> plans) const override {
    EngineDevices made;
    made.emulated = std::make_unique<EmulatedSystem>();
    const std::vector<int> nodes = DeviceNodes(options);
    for (size_t d = 0; d < plans.size(); ++d) {
      EmulatedDeviceOptions device;
      device.name = fmt::format("emulated:{}", d);
      device.capacity_bytes = plans[d].ledger.total_bytes();
      device.numa_node = nodes[d];
      device.host_to_device = options.emulated_link;
      device.device_to_host = options.emulated_link;
      if (d < options.emulated_faults.size()) device.faults = options.emulated_faults[d];
      if (d + 1 == plans.size() && options.emulated_loss_at_copy > 0) {
        device.faults.lost_at_copy = static_cast<uint64_t>(options.emulated_loss_at_copy);
      }
      made.devices.push_back(std::make_unique<EmulatedDevice>(*made.emulated, std::move(device)));
    }
    return made;
  }
};

}  // namespace

const DeviceBackend& EmulatedBackend() {
  static const Emulated backend;
  return backend;
}

}  // namespace moesaic
