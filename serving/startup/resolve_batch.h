// ResolveBatch: start-up of throughput mode, from what was asked and the job at hand to what runs
// on this machine. In two steps, because the job is counted with the model's tokenizer.
#pragma once

#include <cstdint>
#include <vector>

#include "core/perf/workload.h"
#include "serving/batch/batch_setup.h"
#include "serving/startup/machine.h"
#include "serving/startup/measured_costs.h"

namespace moesaic {

// A model that is found and open, with the options as they are on this machine.
struct OpenedModel {
  EngineOptions options;
  ModelFiles files;
};
// The NUMA policy is applied to the calling thread, from which the engine's threads inherit it.
OpenedModel OpenForBatch(const EngineOptions& asked, const Machine& machine);

struct PlannedJob {
  Workload workload;
  // The beginnings of some of its prompts, for what its routing looks like.
  std::vector<std::vector<int32_t>> sample_prompts;
};

// max_num_seqs and max_num_batched_tokens at 0 are planned for the job. What the plan rests on is
// measured when it was not before and the job is long enough, which `progress` is told. Throws as
// PlanBatchJob.
BatchSetup ResolveBatch(OpenedModel model, PlannedJob job, const Machine& machine,
                        const MeasuringProgress& progress);

}  // namespace moesaic
