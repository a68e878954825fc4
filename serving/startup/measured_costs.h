// Where start-up gets the module costs of a model on this machine from: the cache of this user, or
// a measurement (module_profiler.h) that goes there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/perf/module_costs.h"
#include "serving/online/engine_options.h"
#include "serving/online/model_files.h"
#include "serving/startup/machine.h"

namespace moesaic {

// What is measured now; "" at the end.
using MeasuringProgress = std::function<void(std::string_view stage)>;

// The cached ones; nullopt with the reason in *why. `options` as they were asked for: read sizes
// that were left open are part of no key.
std::optional<ModuleCosts> CachedModuleCosts(const EngineOptions& options, const ModelFiles& files,
                                             const Machine& machine, std::string* why);
// Measures, and (`keep`) puts the result into the cache (a cache that cannot be written is only
// warned of). `reading`: the read sizes to use. `sample_prompts`: like the job's, maybe none.
// Throws as MeasureModules.
ModuleCosts MeasureModuleCosts(const EngineOptions& options, const EngineOptions& reading,
                               const ModelFiles& files,
                               std::vector<std::vector<int32_t>> sample_prompts, bool keep,
                               const Machine& machine, const MeasuringProgress& progress);

}  // namespace moesaic
