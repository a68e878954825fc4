// What an engine's options come to on this machine, whatever the model's sizes: the model's
// directory, memory in bytes, threads and their places, devices, kernels.
//
// Functions of their arguments; they read the model's config.json.
#pragma once

#include <cstdint>

#include "core/base/topology.h"
#include "serving/online/engine_options.h"
#include "serving/startup/machine.h"

namespace moesaic {

// What the process may take in all: its share of this machine's memory.
uint64_t MemoryLimitBytes(const MachineShare& share, const Topology& topology);

// Throws as ResolveModelPath.
EngineOptions OptionsOnMachine(const EngineOptions& asked, const Machine& machine);

}  // namespace moesaic
