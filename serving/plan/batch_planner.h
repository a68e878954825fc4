// PlanBatchJob: the one place that decides how large a batch job's engine is. With measured module
// costs it searches batch, rows of a pass and buffers, under the engine's exact memory ledger, for
// what finishes the job soonest, by simulating the engine's own scheduler and the order in which it
// reads experts; without, the rule of PlanBatch decides.
//
// Functions of their arguments, safe from any thread; a second or two at most.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/perf/execution_plan.h"
#include "core/perf/module_costs.h"
#include "core/perf/workload.h"
#include "serving/batch/batch_plan.h"
#include "serving/plan/scheduler_simulation.h"

namespace moesaic {

// The means of a workload, for the rule.
BatchWorkload MeansOf(const Workload& workload);

// Whether times of passes are predicted for what the options ask for: whole batches in host memory,
// or any schedule with emulated devices that compute by threads. The rule decides about the rest.
bool IsPredicted(const EngineOptions& options);

// `costs` may be null. What the options fix (--max-num-seqs, --max-num-batched-tokens, --kv-memory,
// --expert-memory) is kept. Throws as PlanBatch.
BatchPlan PlanBatchJob(const EngineOptions& options, const ModelFiles& files,
                       const Workload& workload, const ModuleCosts* costs);

// What a tenth more of each would gain on a job of `tokens_per_s`, planned anew, the most first.
// `costs` are those that the job was planned from. Another plan each.
std::vector<WhatIf> AskWhatIf(const EngineOptions& options, const ModelFiles& files,
                              const Workload& workload, const ModuleCosts& costs,
                              double tokens_per_s);

}  // namespace moesaic
