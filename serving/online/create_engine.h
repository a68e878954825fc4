// Makes an Engine of latency mode.
#pragma once

#include <memory>

#include "serving/engine/engine.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"
#include "serving/online/engine_setup.h"

namespace moesaic {

class MetricsRegistry;

// Loads the model and starts the engine's thread. `metrics` must outlive the engine.
std::unique_ptr<Engine> CreateEngine(EngineSetup setup, MetricsRegistry& metrics);
// Of options in which everything is chosen: sets up first.
std::unique_ptr<Engine> CreateEngine(const EngineOptions& options, MetricsRegistry& metrics);

}  // namespace moesaic
