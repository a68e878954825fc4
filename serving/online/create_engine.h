// Makes an Engine of latency mode.
#pragma once

#include <memory>
#include <vector>

#include "serving/engine/engine.h"
#include "serving/engine/step_turns.h"
#include "serving/model/load_progress.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"
#include "serving/online/engine_setup.h"

namespace moesaic {

class MetricsRegistry;
class StateSection;

// Loads the model and starts the engine's thread. `metrics` must outlive the engine. `kept`:
// sections of any thread that its state file holds beside what it learns; shared with who serves
// the model. `turn`: its turns among the engines of several models; null: it is alone.
// `on_progress` (may be empty) is told on a thread of the engine's how much of the model has been
// read (LoadProgress).
std::unique_ptr<Engine> CreateEngine(EngineSetup setup, MetricsRegistry& metrics,
                                     std::vector<std::shared_ptr<StateSection>> kept = {},
                                     std::shared_ptr<StepTurns::Member> turn = nullptr,
                                     LoadProgress::Tell on_progress = nullptr);
// Of options in which everything is chosen: sets up first.
std::unique_ptr<Engine> CreateEngine(const EngineOptions& options, MetricsRegistry& metrics);

}  // namespace moesaic
