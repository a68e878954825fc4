// The devices of an engine's test that compute: CUDA devices (engine_machine_gpu.cpp), or emulated
// ones with the kernels compiled for the host (host/engine_machine_host.cpp).
#pragma once

#include <string>

#include "serving/online/create_engine.h"

namespace moesaic {

// False where there are none: `why_not` says why.
bool UseComputingDevices(DeviceOptions& options, std::string& why_not);

}  // namespace moesaic
