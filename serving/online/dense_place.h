// Where the dense part of a model is, attention with the KV cache, the MLPs of every token and the
// head: on the host, on the first device, or on several together.
//
// Functions of their arguments. Internal to serving/online and serving/batch.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "core/io/expert_layout.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/model.h"
#include "serving/online/device_plan.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"

namespace moesaic {

// Throws Error(kInvalidArgument) when the dense part is asked for where no device computes, or with
// a library whose bits are not those of `--numerics exact`; kUnsupported or kNotFound when that
// library is not there.
void CheckDenseMode(const EngineOptions& options);

// What the dense part, with these limits and on so many devices, takes of each of them.
DenseLedger DenseLedgerOf(const ModelConfig& config, WeightType type, const ModelLimits& limits,
                          int devices);
// And of the host, pinned.
uint64_t DenseHostBytes(const ModelConfig& config, const ModelLimits& limits, int devices);

// Plans the devices of latency mode, and where the dense part is. Requests have at most `context`
// tokens; `machine_bytes` is the host's memory, which emulated devices share. Throws as PlanDevices
// and the dense part do.
void PlanWithDevices(const EngineOptions& options, const ModelConfig& config,
                     const ExpertLayout& layout, int64_t context, uint64_t machine_bytes,
                     EnginePlan& plan);

}  // namespace moesaic
