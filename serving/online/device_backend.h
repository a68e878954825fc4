// DeviceBackend: what an engine has to know of a kind of devices before there are any: whether this
// machine has them, how much of each may be taken, what computes on them, how they are made. A new
// kind is its Device (core/device), an object of this class in a file of its own, and a row in
// device_backend.cpp.
//
// One for each kind, without state: safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/device/emulated_device.h"
#include "core/perf/hardware_profile.h"
#include "kernels/cuda/kernels.h"
#include "serving/online/device_options.h"
#include "serving/online/engine_plan.h"

namespace moesaic {

struct EngineDevices {
  std::unique_ptr<EmulatedSystem> emulated;  // outlives the devices; null with others
  std::vector<std::unique_ptr<Device>> devices;

  std::vector<Device*> pointers() const;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  // Devices where --devices is not given.
  virtual int default_count() const { return 0; }
  // Their memory is the host's, and copies to them are the host's work.
  virtual bool in_host_memory() const { return false; }
  // Throws Error(kUnsupported / kNotFound / kInvalidArgument) where this build or this machine has
  // not got options.count of them.
  virtual void Check(const DeviceOptions& /*options*/) const {}
  // What may be taken of a device, which there is; UINT64_MAX: as much as the host has.
  virtual uint64_t MemoryBytes(size_t /*device*/) const { return UINT64_MAX; }
  // Null: the host computes, out of their memory.
  virtual const cuda::Kernels* Kernels(const DeviceOptions& options) const = 0;
  // What was measured of so many devices; nullopt: not of all of them.
  virtual std::optional<std::vector<DeviceProfile>> Profiles(const HardwareProfile& /*profile*/,
                                                             size_t /*count*/) const {
    return std::nullopt;
  }
  // Takes the devices' memory. Throws Error(kResourceExhausted).
  virtual EngineDevices Make(const DeviceOptions& options,
                             std::span<const DevicePlan> plans) const = 0;
};

const DeviceBackend& BackendOf(DeviceKind kind);

}  // namespace moesaic
