// The devices of an engine: what they get of the experts, and the devices themselves. Internal to
// serving/online and serving/batch.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/emulated_device.h"
#include "core/io/expert_layout.h"
#include "prefetch/link/device_experts.h"
#include "prefetch/link/expert_placement.h"
#include "serving/model/dense_part.h"
#include "serving/model/expert_runner.h"
#include "serving/model/weights.h"
#include "serving/online/create_engine.h"

namespace moesaic {

// Which device holds which expert. There is at least one device.
ExpertPlacement PlaceExperts(const DeviceOptions& options, const ModelConfig& config);

// Null: the host computes, out of the memory of (emulated) devices.
const cuda::Kernels* KernelsOf(const DeviceOptions& options);

// What becomes of a miss: in the exact class of devices that compute, they compute everything.
MissMode MissModeOf(const EngineOptions& options);

// Throws Error(kInvalidArgument / kUnsupported / kNotFound) on options that this model, this build
// or this machine cannot serve, whatever the memory.
void CheckDevices(const EngineOptions& options, const ModelConfig& config,
                  const ExpertLayout& layout);
// Throws Error(kInvalidArgument) when the dense part is asked for where no device computes.
void CheckDenseMode(const DeviceOptions& options);

// What may be taken of a device, which there is; UINT64_MAX: as much as the host has.
uint64_t DeviceLimitBytes(const DeviceOptions& options, size_t device);

// What the dense part, with these limits and on so many devices, takes of each of them.
using DenseLedger = std::vector<std::vector<LedgerEntry>>;  // [devices] []
DenseLedger DenseLedgerOf(const ModelConfig& config, WeightType type, const ModelLimits& limits,
                          int devices);
// And of the host, pinned.
uint64_t DenseHostBytes(const ModelConfig& config, const ModelLimits& limits, int devices);

// Each device's experts, slots and ledger. `dense`: what the first ones hold besides. Throws
// Error(kResourceExhausted) on too little memory, and as CheckDevices does.
std::vector<DevicePlan> PlanDevices(const EngineOptions& options, const ModelConfig& config,
                                    const ExpertLayout& layout, const DenseLedger& dense = {});

// What the devices take of the host besides the experts' home, the emulated ones' memory included.
uint64_t DevicesHostBytes(const EngineOptions& options, const ModelConfig& config,
                          const std::vector<DevicePlan>& plans);
// Lines that say what each device's memory is for.
std::string DeviceLedgerText(const EngineOptions& options, const std::vector<DevicePlan>& plans);

struct EngineDevices {
  std::unique_ptr<EmulatedSystem> emulated;  // outlives the devices
  std::vector<std::unique_ptr<Device>> devices;

  std::vector<Device*> pointers() const;
};

// Takes the devices' memory. Throws Error(kResourceExhausted).
EngineDevices MakeDevices(const DeviceOptions& options, std::span<const DevicePlan> plans);

// The rates that misses are planned by until they are measured while serving, from what is known of
// the devices.
void StartFromProfiles(const EngineOptions& options, const ExpertLayout& layout,
                       DeviceExpertsOptions& experts);

// What devices compute with, when they do. Throws as DeviceOperator does.
DeviceOperators MakeOperators(const EngineOptions& options, const EngineDevices& devices,
                              const ExpertLayout& layout, const ModelConfig& config);

// The dense part on the first `count` devices; null: none. Throws as its constructor does.
std::unique_ptr<DensePart> MakeDense(const EngineOptions& options, const EngineDevices& devices,
                                     int count, const ModelConfig& config,
                                     const ModelWeights& weights, const ModelLimits& limits);

}  // namespace moesaic
