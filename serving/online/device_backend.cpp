#include "serving/online/device_backend.h"

#include "core/base/check.h"

namespace moesaic {

// Each in the file of its name.
const DeviceBackend& EmulatedBackend();
const DeviceBackend& CudaBackend();

const DeviceBackend& BackendOf(DeviceKind kind) {
  static const Named<const DeviceBackend& (*)()> kBackends[] = {{"emulated", EmulatedBackend},
                                                                {"cuda", CudaBackend}};
  const auto* const backend = FindNamed(kBackends, DeviceKindName(kind));
  CHECK(backend != nullptr);
  return backend->value();
}

std::vector<Device*> EngineDevices::pointers() const {
  std::vector<Device*> all;
  for (const std::unique_ptr<Device>& device : devices) all.push_back(device.get());
  return all;
}

}  // namespace moesaic
