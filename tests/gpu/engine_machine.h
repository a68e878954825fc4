// The devices of an engine's test that compute: CUDA devices (engine_machine_gpu.cpp), or emulated
// ones with the kernels compiled for the host (host/engine_machine_host.cpp).
#pragma once

#include <string>

#include "core/device/cuda_device.h"
#include "serving/online/create_engine.h"

namespace moesaic {

// False where there are not options.count of them: `why_not` says why.
bool UseComputingDevices(DeviceOptions& options, std::string& why_not);

// Why these GPUs are not enough for so many devices; empty: they are. An engine takes each of its
// devices from a GPU of its own.
std::string WhyTooFewGpus(const CudaMachine& machine, int devices);

}  // namespace moesaic
