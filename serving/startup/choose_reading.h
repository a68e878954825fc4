// How experts are read, where io-depth and packet-size leave it open: as the profile of this
// machine says, or as a brief measurement of the file that the experts are in.
#pragma once

#include "core/io/expert_source.h"
#include "serving/online/engine_options.h"
#include "serving/plan/machine_profiler.h"
#include "serving/startup/machine.h"

namespace moesaic {

// What is read, and for what.
struct ReadDemand {
  const ExpertSource& experts;
  bool all_fit = false;  // all experts stay in memory: nothing is read while serving
  ReadUse use = ReadUse::kUrgent;
};

// Sets io_depth and packet_bytes where they are 0. Returns whether it did. Throws as reading does.
bool ChooseReading(const ReadDemand& demand, const Machine& machine, EngineOptions& options);

}  // namespace moesaic
