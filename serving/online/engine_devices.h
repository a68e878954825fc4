// What the devices of an engine hold and what computes on them, made as they were planned. Internal
// to serving/online and serving/batch.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config/model_config.h"
#include "core/io/expert_layout.h"
#include "prefetch/link/device_experts.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/host_experts.h"
#include "serving/model/device_dense.h"
#include "serving/model/expert_runner.h"
#include "serving/model/weights.h"
#include "serving/online/dense_place.h"
#include "serving/online/device_backend.h"
#include "serving/online/device_plan.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"
#include "serving/online/model_files.h"

namespace moesaic {

// What becomes of a miss: in the exact class of devices that compute, they compute everything.
MissMode MissModeOf(const EngineOptions& options);

// The home of all experts, read from disk. `files` and `devices` must outlive it. Throws as
// HostExperts does.
std::unique_ptr<HostExperts> MakeHome(const EngineOptions& options, const ModelFiles& files,
                                      const ExpertPlacement& placement,
                                      const EngineDevices& devices);

// The rates that misses are planned by until they are measured while serving, from what is known of
// the devices: their profiles, or what they emulate.
void StartFromProfiles(const EngineOptions& options, const ExpertLayout& layout,
                       DeviceExpertsOptions& experts);

// What devices compute with, when they do. Throws as DeviceOperator does.
DeviceOperators MakeOperators(const EngineOptions& options, const EngineDevices& devices,
                              const ExpertLayout& layout, const ModelConfig& config);

// The dense part on the first `count` devices; null: none. Throws as its constructor does.
std::unique_ptr<DeviceDense> MakeDense(const EngineOptions& options, const EngineDevices& devices,
                                       int count, const ModelConfig& config,
                                       const ModelWeights& weights, const ModelLimits& limits);

}  // namespace moesaic
