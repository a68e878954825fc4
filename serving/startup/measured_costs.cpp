#include "serving/startup/measured_costs.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "serving/online/engine_plan.h"
#include "serving/plan/module_profiler.h"

namespace moesaic {
namespace {

ModuleProfilerInputs InputsOf(const EngineOptions& options, const ModelFiles& files) {
  ModuleProfilerInputs inputs{files.config, *files.tensors, *files.experts, *files.kernels};
  inputs.weight_type = ChooseWeightType(options);
  inputs.kv_type = ChooseKvType(options);
  inputs.threads = options.threads;
  inputs.thread_layout = options.thread_layout;
  inputs.streaming.backend = options.io_backend;
  inputs.streaming.packet_bytes = options.packet_bytes;
  inputs.streaming.depth = options.io_depth;
  inputs.streaming.link_bytes_per_s = options.link_bytes_per_s;
  // The process is there already, and the engine is not.
  inputs.memory_bytes = options.machine_memory_bytes > 2 * kProcessBytes
                            ? options.machine_memory_bytes - kProcessBytes
                            : options.machine_memory_bytes / 2;
  return inputs;
}

}  // namespace

std::optional<ModuleCosts> CachedModuleCosts(const EngineOptions& options, const ModelFiles& files,
                                             const Machine& machine, std::string* why) {
  const std::string key = ModuleCostsKey(InputsOf(options, files), DescribeHost(machine.topology));
  return LoadModuleCosts(machine.module_costs, key, why);
}

ModuleCosts MeasureModuleCosts(const EngineOptions& options, const EngineOptions& reading,
                               const ModelFiles& files,
                               std::vector<std::vector<int32_t>> sample_prompts, bool keep,
                               const Machine& machine, const MeasuringProgress& progress) {
  const HostDescription host = DescribeHost(machine.topology);
  ModuleProfilerInputs inputs = InputsOf(reading, files);
  inputs.sample_prompts = std::move(sample_prompts);
  inputs.progress = progress;
  ModuleCosts costs = MeasureModules(inputs, host);
  costs.key = ModuleCostsKey(InputsOf(options, files), host);
  progress("");
  if (!keep) return costs;
  try {
    SaveModuleCosts(costs, machine.module_costs);
  } catch (const Error& error) {
    LogWarn("the measured module costs are not kept: {}", error.what());
  }
  return costs;
}

}  // namespace moesaic
