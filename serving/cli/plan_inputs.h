// The model and the machine that `moesaic plan` is asked about.
#pragma once

#include <string>

#include "core/perf/machine_spec.h"
#include "core/perf/model_shape.h"
#include "serving/cli/command_line.h"
#include "serving/startup/machine.h"

namespace moesaic {

// A preset by name or file, or a model directory or id with its sizes as they are in memory with
// this dtype. Throws Error(kNotFound) that lists the presets.
struct PlanModel {
  ModelShape shape;
  std::filesystem::path directory;  // empty for a preset
};
PlanModel FindPlanModel(const std::string& name, std::optional<WeightType> dtype,
                        const Invocation& invocation, const Machine& here);

// A preset by name or file, a profile that `moesaic profile` wrote, or "this": the profile of this
// machine, whose limit is the memory that this process may take. Throws Error(kNotFound).
MachineSpec FindPlanMachine(const std::string& name, ConstantChoice choice,
                            const std::filesystem::path& model_dir, const Invocation& invocation,
                            const Machine& here);

}  // namespace moesaic
