#include "tests/gpu/engine_machine.h"

namespace moesaic {

bool UseComputingDevices(DeviceOptions& options, std::string& why_not) {
  why_not = WhyTooFewGpus(FindCudaDevices(), options.count);
  options.kind = DeviceKind::kCuda;
  return why_not.empty();
}

}  // namespace moesaic
