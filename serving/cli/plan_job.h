// PlanJob: what `moesaic plan` is asked and what it answers, for the command and for the Python
// module.
//
// Owned and used by one thread; the table that its options are in may not outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/config/option_table.h"
#include "core/perf/execution_plan.h"
#include "core/perf/workload.h"
#include "kernels/cpu/kernels.h"
#include "serving/cli/command_line.h"
#include "serving/cli/plan_inputs.h"
#include "serving/plan/throughput_planner.h"

namespace moesaic {

struct PlannedThroughput {
  ExecutionPlan plan;
  PlanModel model;
  Workload workload;
  bool has_gpu = false;
};
Json PlannedThroughputJson(const PlannedThroughput& planned);

class PlanJob {
 public:
  // Adds the options, bound to this, to the table; called once.
  void AddOptions(OptionTable& table);
  // A model that is named otherwise than by its option.
  void SetModel(const std::string& name) { model_name_ = name; }
  bool has_model() const { return !model_name_.empty(); }
  // `invocation` tells where presets and this machine's profile are. Throws Error as the readers
  // and the planner do.
  PlannedThroughput Run(const Invocation& invocation);

 private:
  std::string model_name_;
  std::string machine_name_ = "this";
  std::string workload_text_;
  std::string host_memory_;
  std::string device_memory_;
  std::string schedule_ = "auto";
  std::string constants_ = "measured";
  std::optional<WeightType> dtype_;
  int64_t default_generated_ = 128;
  PlanOptions options_;
};

}  // namespace moesaic
