// Where commands get the module costs of a model on this machine from: the cache of this user, or a
// measurement (module_profiler.h) that goes there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/topology.h"
#include "core/perf/module_costs.h"
#include "serving/cli/command_line.h"
#include "serving/online/engine_parts.h"

namespace moesaic {

std::filesystem::path ModuleCostsDirectory(const Invocation& invocation);

// The cached ones; nullopt with the reason in *why. `options` as the command line gave them: read
// sizes that were left open are part of no key.
std::optional<ModuleCosts> CachedModuleCosts(const EngineOptions& options, const ModelFiles& files,
                                             const Invocation& invocation, const Topology& topology,
                                             std::string* why);
// Measures, says so on the status line, and (`keep`) puts the result into the cache (a cache that
// cannot be written is only warned of). `reading`: the read sizes to use. `sample_prompts`: like
// the job's, maybe none. Throws as MeasureModules.
ModuleCosts MeasureModuleCosts(const EngineOptions& options, const EngineOptions& reading,
                               const ModelFiles& files,
                               std::vector<std::vector<int32_t>> sample_prompts, bool keep,
                               const Invocation& invocation, const Topology& topology);

}  // namespace moesaic
