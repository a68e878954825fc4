// EngineSetup: what an engine of latency mode starts with: options without open choices, the
// model's files, the plan of its memory. Made once, at start-up (serving/startup), and given to the
// engine.
#pragma once

#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"
#include "serving/online/model_files.h"

namespace moesaic {

struct EngineSetup {
  EngineOptions options;
  ModelFiles files;
  EnginePlan plan;
};

// Of options in which everything is chosen: opens the files and plans. Throws as those do.
EngineSetup SetUpEngine(const EngineOptions& options);

}  // namespace moesaic
