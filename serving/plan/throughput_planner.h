// PlanThroughput: searches for the ExecutionPlan that finishes a workload soonest on a machine.
//
// A function without state, safe from any thread; takes seconds at most. How it predicts and what
// it searches: docs/throughput.md.
#pragma once

#include <cstdint>
#include <optional>

#include "core/perf/execution_plan.h"
#include "core/perf/machine_spec.h"
#include "core/perf/model_shape.h"
#include "core/perf/workload.h"

namespace moesaic {

struct PlanOptions {
  std::optional<ScheduleKind> schedule;  // only this one
  int64_t kv_block_tokens = 16;
  // Most sequences at once; 0: what memory and workload allow.
  int64_t most_sequences = 0;
  // What is given here is not searched: 0 and -1 leave it open.
  int64_t batch_sequences = 0;
  int64_t micro_batches = 0;
  int64_t resident_experts = -1;  // at most; as many as fit, else
  // Plan again with one constant a tenth better each, to say what would help most.
  bool what_if = true;
};

// Throws Error: kResourceExhausted when no setting fits (says what is missing and what to change),
// kInvalidArgument (an empty workload), kUnsupported (an encoder-decoder).
ExecutionPlan PlanThroughput(const ModelShape& model, const MachineSpec& machine,
                             const Workload& workload, const PlanOptions& options = {});

}  // namespace moesaic
