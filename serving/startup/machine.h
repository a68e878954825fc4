// Machine: what start-up knows of the machine that it runs on: what the process may use of it, what
// was measured of it before, and where measurements are kept.
//
// Plain data, read once and passed down.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "core/base/topology.h"
#include "core/perf/hardware_profile.h"

namespace moesaic {

struct Machine {
  Topology topology;
  std::optional<HardwareProfile> profile;  // that `moesaic profile` wrote here; nullopt: none
  std::string why_no_profile;
  std::filesystem::path module_costs;  // directory of what was measured of models
  bool isa_forced = false;  // by MOESAIC_ISA: the profile's choice of kernels is not used
};

// `environment`: "NAME=value" entries, which say where the user's cache is.
Machine ReadMachine(std::span<const std::string> environment);

// Where `moesaic profile` keeps its result for this user.
std::filesystem::path ProfilePath(std::span<const std::string> environment);

}  // namespace moesaic
