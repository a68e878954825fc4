#include "tests/gpu/engine_machine.h"

namespace moesaic {

std::string WhyTooFewGpus(const CudaMachine& machine, int devices) {
  if (!machine.why_none.empty()) return machine.why_none;
  const size_t gpus = machine.devices.size();
  if (gpus >= static_cast<size_t>(devices)) return "";
  return "this needs " + std::to_string(devices) + " GPUs, and there " +
         (gpus == 1 ? "is one" : "are " + std::to_string(gpus));
}

}  // namespace moesaic
