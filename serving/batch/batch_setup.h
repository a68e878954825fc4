// BatchSetup: what an engine of throughput mode starts with: options without open choices, the
// model's files, the plan of its memory and passes. Made once, at start-up (serving/startup), and
// given to the engine.
#pragma once

#include "serving/batch/batch_plan.h"
#include "serving/online/engine_options.h"
#include "serving/online/model_files.h"

namespace moesaic {

struct BatchSetup {
  EngineOptions options;
  ModelFiles files;
  BatchPlan plan;
};

// Of options in which everything but the batch is chosen, which is sized by rule (PlanBatch).
BatchSetup SetUpBatch(const EngineOptions& options, const BatchWorkload& workload);

}  // namespace moesaic
