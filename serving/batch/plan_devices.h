// What the devices of a batch engine hold: expert slots, and what computes there.
//
// Plain data and functions of their arguments. Internal to serving/batch.
#pragma once

#include <string>
#include <vector>

#include "serving/batch/batch_plan.h"
#include "serving/online/create_engine.h"
#include "serving/online/part_options.h"

namespace moesaic {

struct BatchDevices {
  std::vector<DevicePlan> devices;  // empty: none
  // Norms, projections, routers, shared experts and the head are computed by kernels of the first.
  bool dense_on_device = false;
  std::string why_dense_on_host;  // with DenseMode::kAuto, when it could not be; else empty
};

// The devices of a batch of these sizes. Throws Error as PlanDevices.
BatchDevices PlanBatchDevices(const EngineOptions& options, const ModelFiles& files,
                              const BatchSizes& sizes);

// The options of latency mode's parts for passes of so many rows.
EngineOptions WithRows(const EngineOptions& options, const BatchSizes& sizes);

// Limits of the dense part on a device, whose attention and keys and values are the host's.
ModelLimits DenseLimitsOf(const EngineOptions& options, const BatchSizes& sizes);

// f32 rows, stride floats apart.
inline uint64_t FloatRowBytes(int64_t rows, int64_t stride) {
  return static_cast<uint64_t>(rows * stride) * sizeof(float);
}

}  // namespace moesaic
