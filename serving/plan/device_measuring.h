// MeasureDevice: what a device's links and experts take on this machine, alone and at the same
// time: what the miss planner starts with.
//
// Blocking; starts threads of its own and ends them. Call it while nothing else runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/device/device.h"
#include "core/perf/hardware_profile.h"
#include "kernels/cuda/kernels.h"
#include "serving/plan/machine_profiler.h"

namespace moesaic {

// How much is measured, of what.
struct DeviceAmounts {
  int rounds = 0;
  double round_s = 0;        // of computing experts, at least
  uint64_t copy_bytes = 0;   // of a round of copies, and of the memory at either end
  int64_t hidden = 0;        // of the experts
  int64_t intermediate = 0;  // likewise
  int64_t experts = 0;       // taken in turn; a batch on the device
  std::vector<uint64_t> packets;
  std::vector<int64_t> rows;  // ascending
  std::vector<WeightType> types;
};
DeviceAmounts DeviceAmountsFor(const ProfilerOptions& options);
// Of the device's memory.
uint64_t MeasuredDeviceBytes(const DeviceAmounts& amounts);

// `kernels`: what the device computes with; null: nothing is measured of that. `pool`: whose
// threads compute experts on the host. Throws the device's Error, or Error(kResourceExhausted) when
// device or host have not got the memory.
DeviceProfile MeasureDevice(Device& device, const std::string& model, const cuda::Kernels* kernels,
                            ThreadPool& pool, const DeviceAmounts& amounts,
                            const std::function<void(std::string_view)>& progress);

// All GPUs that there are; one that cannot be measured is left out with a warning.
std::vector<DeviceProfile> MeasureCudaDevices(ThreadPool& pool, const ProfilerOptions& options);

}  // namespace moesaic
