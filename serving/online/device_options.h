// DeviceOptions: devices as the fast tier. Every expert lives in host memory, and some on the
// device that the placement gives it.
//
// Plain data. AddDeviceSettings (engine_settings.h) binds settings to its fields.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/memory_size.h"
#include "core/base/named.h"
#include "core/device/device.h"
#include "core/device/emulated_device.h"
#include "core/perf/hardware_profile.h"
#include "kernels/cuda/kernels.h"
#include "prefetch/link/miss_planner.h"

namespace moesaic {

// Who has the dense part, attention with the KV cache, the MLPs of every token and the head: the
// first device or the host, as may be (kAuto), the first device, the host, or all devices together.
enum class DenseMode { kAuto, kOn, kOff, kSharded };
inline constexpr Named<DenseMode> kDenseModes[] = {{"auto", DenseMode::kAuto},
                                                   {"on", DenseMode::kOn},
                                                   {"off", DenseMode::kOff},
                                                   {"tp", DenseMode::kSharded}};

struct DeviceOptions {
  int count = 0;  // 0: no devices, experts go from disk to host memory
  DeviceKind kind = DeviceKind::kEmulated;
  MemorySize memory;      // on each; a share is of the experts that it holds
  MemorySize gpu_memory;  // on each: all that may be taken of it
  // Of devices that compute (in throughput mode without attention); kAuto: when it can be and fits.
  DenseMode dense = DenseMode::kAuto;
  bool nccl = false;            // with kSharded: instead of peer copies
  bool cublas = false;          // for products of many rows: instead of our own kernels
  std::vector<int> numa_nodes;  // the nodes that devices take turns on; empty: not known
  MissMode miss = MissMode::kAuto;
  // Of each device, what was measured of it on this machine; empty: nothing.
  std::vector<DeviceProfile> profiles;
  EmulatedLink emulated_link = {.bytes_per_s = 12e9, .latency_us = 10};
  int64_t emulated_loss_at_copy = 0;  // by which the last emulated device is lost; 0: it is not
  std::vector<EmulatedFaults> emulated_faults;  // of device d, for tests
  // Emulated devices compute with these, as CUDA devices do with theirs; for tests. Null: the host
  // computes out of their memory.
  const cuda::Kernels* emulated_kernels = nullptr;
};

// Null: the host computes, out of the memory of (emulated) devices.
const cuda::Kernels* KernelsOf(const DeviceOptions& options);
// The NUMA node of each device; -1: not known.
std::vector<int> DeviceNodes(const DeviceOptions& options);

}  // namespace moesaic
