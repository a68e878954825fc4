// Makes an Engine for a model on disk (or for random weights): options in, ledger checked, engine
// out.
#pragma once

#include <memory>

#include "serving/online/engine.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"

namespace moesaic {

class MetricsRegistry;

// Loads the model and starts the engine's thread. `metrics` must outlive the engine.
std::unique_ptr<Engine> CreateEngine(const EngineOptions& options, MetricsRegistry& metrics);

}  // namespace moesaic
