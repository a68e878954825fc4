// What an engine's devices hold: expert slots, and what else is taken of each one's memory and of
// the host's for it.
//
// Functions of their arguments. Internal to serving/online and serving/batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/memory_ledger.h"
#include "core/config/model_config.h"
#include "core/io/expert_layout.h"
#include "prefetch/link/expert_placement.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"

namespace moesaic {

// Which device holds which expert. There is at least one device.
ExpertPlacement PlaceExperts(const DeviceOptions& options, const ModelConfig& config,
                             const FixedExperts& fixed);

// Throws Error(kInvalidArgument / kUnsupported / kNotFound) on options that this model, this build
// or this machine cannot serve, whatever the memory.
void CheckDevices(const EngineOptions& options, const ModelConfig& config,
                  const ExpertLayout& layout);

// What may be taken of a device, which there is; UINT64_MAX: as much as the host has.
uint64_t DeviceLimitBytes(const DeviceOptions& options, size_t device);

// What the dense part takes of each of the devices that have it.
using DenseLedger = std::vector<std::vector<MemoryItem>>;  // [devices] []

// Each device's experts, slots and ledger. `dense`: what the first ones hold besides. Throws
// Error(kResourceExhausted) on too little memory, and as CheckDevices does.
std::vector<DevicePlan> PlanDevices(const EngineOptions& options, const ModelConfig& config,
                                    const ExpertLayout& layout, const PlacedExperts& placed,
                                    const DenseLedger& dense = {});

// What the devices take of the host besides the experts' home, the emulated ones' memory included.
uint64_t DevicesHostBytes(const EngineOptions& options, const ModelConfig& config,
                          const std::vector<DevicePlan>& plans);
// What that is called in the host's ledger.
const char* DevicesHostName(const DeviceOptions& options);
// Lines that say what each device's memory is for.
std::string DeviceLedgerText(const std::vector<DevicePlan>& plans);

}  // namespace moesaic
