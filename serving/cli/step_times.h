// StepTimes: what a model's layer and expert take on a measured machine, for the simulator, which
// knows times only.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "core/perf/hardware_profile.h"

namespace moesaic {

struct StepTimes {
  uint64_t expert_bytes = 0;
  int64_t expert_copy_ns = 0;    // from disk, at the fastest rate measured
  int64_t layer_compute_ns = 0;  // of a decode step: one token
};

// Bounds that one token meets: an expert costs its bytes at the disk's rate, a layer its dense
// weights and its token's experts, in bf16, at the memory's. Throws Error(kInvalidArgument) when
// the profile has not got these rates, or the model has no experts.
StepTimes DeriveStepTimes(const HardwareProfile& machine, const ModelConfig& model);

}  // namespace moesaic
