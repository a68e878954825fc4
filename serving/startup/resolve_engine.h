// ResolveEngine: start-up of an engine, from what was asked to what runs on this machine: every
// open choice made, the model's files open, its memory planned.
#pragma once

#include "serving/online/engine_setup.h"
#include "serving/startup/machine.h"

namespace moesaic {

// The NUMA policy is applied to the calling thread, from which the engine's threads inherit it.
// Throws as OptionsOnMachine, OpenModelFiles and PlanEngine.
EngineSetup ResolveEngine(const EngineOptions& asked, const Machine& machine);

}  // namespace moesaic
