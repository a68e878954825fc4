// The devices of an engine: what they get of the experts, and the devices themselves. Internal to
// serving/online.
#pragma once

#include <memory>
#include <vector>

#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/emulated_device.h"
#include "prefetch/expert_placement.h"
#include "serving/online/create_engine.h"

namespace moesaic {

// Which device holds which expert. There is at least one device.
ExpertPlacement PlaceExperts(const DeviceOptions& options, const ModelConfig& config);

// Each device's experts and slots. Throws Error(kInvalidArgument / kResourceExhausted /
// kUnsupported) on options that this model or this build cannot serve.
std::vector<DevicePlan> PlanDevices(const EngineOptions& options, const ModelConfig& config,
                                    uint64_t slot_bytes);

struct EngineDevices {
  std::unique_ptr<EmulatedSystem> emulated;  // outlives the devices
  std::vector<std::unique_ptr<Device>> devices;

  std::vector<Device*> pointers() const;
};

// Takes the devices' memory. Throws Error(kResourceExhausted).
EngineDevices MakeDevices(const DeviceOptions& options, const EnginePlan& plan);

}  // namespace moesaic
