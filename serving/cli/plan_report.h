// An ExecutionPlan as a page of text.
#pragma once

#include <string>

#include "core/perf/execution_plan.h"
#include "core/perf/workload.h"

namespace moesaic {

// `has_gpu`: false names link and device what they are then, disk and CPU.
std::string PlanReport(const ExecutionPlan& plan, const Workload& workload, bool has_gpu);

}  // namespace moesaic
