// What the commands need to know of this machine, and what an engine's options come to on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/topology.h"
#include "core/perf/hardware_profile.h"
#include "serving/cli/command_line.h"
#include "serving/online/create_engine.h"
#include "serving/plan/machine_profiler.h"

namespace moesaic {

// Where `moesaic profile` keeps its result for this user.
std::filesystem::path ProfilePath(const Invocation& invocation);

// A few lines: processor, instruction sets, cores, nodes, memory.
std::string DescribeMachine(const HostDescription& host);

// What the process may take in all: its share of this machine's memory.
uint64_t MemoryLimitBytes(const MachineShare& share, const Topology& topology);

// The options as they are on this machine: the model's directory, memory in bytes, threads and
// their places, devices. Throws as ResolveModelPath.
EngineOptions OptionsOnMachine(const EngineOptions& given, const Topology& topology);

// Takes the choice of kernels from the profile of this machine when there is one. An instruction
// set that is forced (MOESAIC_ISA) is left alone.
void ChooseKernels(const Invocation& invocation, const Topology& topology, EngineOptions& options);

// Takes what the profile of this machine says of the GPUs, when it knows all of them.
void ChooseDeviceRates(const Invocation& invocation, const Topology& topology,
                       EngineOptions& options);

// Where io-depth and packet-size are left open: takes them from the profile of this machine, or
// from a brief measurement of the file that the experts are read from when there is none. Does
// nothing when all experts fit in memory.
void ChooseReading(const EnginePlan& plan, const Invocation& invocation, const Topology& topology,
                   ReadUse use, EngineOptions& options);

}  // namespace moesaic
