// What the rules of --place, and the flags that are short for rules, come to in an engine: experts
// that stay, experts that are on a device, on the host or on a NUMA node for good, and where the
// dense part is.
//
// Plain data and functions of their arguments. Internal to serving; rules themselves are read and
// matched by core/config (placement_rule.h, placement.h).
#pragma once

#include <vector>

#include "cache/expert_grid.h"
#include "core/config/model_config.h"
#include "core/config/placement.h"
#include "prefetch/link/expert_placement.h"
#include "serving/online/device_options.h"
#include "serving/online/engine_options.h"

namespace moesaic {

// Of experts; empty: everything is as the engine chooses.
struct PlacedExperts {
  FixedExperts fixed;             // with devices
  std::vector<ExpertIndex> kept;  // loaded at the start, and never evicted; ascending
};

// In the order in which they count: those that flags stand for, then those of --place. Reads the
// files that it names. Throws Error of these.
std::vector<PlacementRule> PlacementRulesOf(const EngineOptions& options);

// Throws Error(kInvalidArgument / kUnsupported) that names the rule which this engine cannot
// follow.
PlacedExperts PlaceExpertsByRules(const EngineOptions& options, const ModelConfig& config);

// `options` with the place of the dense part that the rules give; all of it has one. Throws as
// PlaceExpertsByRules.
EngineOptions WithDenseByRules(const EngineOptions& options, const ModelConfig& config);

// Throws Error(kUnsupported) that names a rule about experts which throughput mode cannot follow.
void CheckRulesOfBatch(const EngineOptions& options, const ModelConfig& config);

}  // namespace moesaic
