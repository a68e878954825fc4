#include "core/device/cuda_device.h"
#include "tests/gpu/engine_machine.h"

namespace moesaic {

bool UseComputingDevices(DeviceOptions& options, std::string& why_not) {
  why_not = FindCudaDevices().why_none;
  options.kind = DeviceKind::kCuda;
  return why_not.empty();
}

}  // namespace moesaic
