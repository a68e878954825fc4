#include "serving/cli/measured_costs.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "kernels/cpu/product_choice.h"
#include "serving/cli/machine.h"
#include "serving/cli/output.h"
#include "serving/plan/module_profiler.h"

namespace moesaic {
namespace {

ModuleProfilerInputs InputsOf(const EngineOptions& options, const ModelFiles& files) {
  ModuleProfilerInputs inputs{
      files.config, *files.tensors, *files.experts,
      WithChoices(SelectKernels(ChooseWeightType(options)), options.kernel_choices)};
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
  inputs.progress = [](std::string_view stage) { StatusLine(fmt::format("measuring {}", stage)); };
  return inputs;
}

}  // namespace

std::filesystem::path ModuleCostsDirectory(const Invocation& invocation) {
  return ProfilePath(invocation).parent_path() / "module-costs";
}

std::optional<ModuleCosts> CachedModuleCosts(const EngineOptions& options, const ModelFiles& files,
                                             const Invocation& invocation, const Topology& topology,
                                             std::string* why) {
  const std::string key = ModuleCostsKey(InputsOf(options, files), DescribeHost(topology));
  return LoadModuleCosts(ModuleCostsDirectory(invocation), key, why);
}

ModuleCosts MeasureModuleCosts(const EngineOptions& options, const EngineOptions& reading,
                               const ModelFiles& files,
                               std::vector<std::vector<int32_t>> sample_prompts, bool keep,
                               const Invocation& invocation, const Topology& topology) {
  const HostDescription host = DescribeHost(topology);
  ModuleProfilerInputs inputs = InputsOf(reading, files);
  inputs.sample_prompts = std::move(sample_prompts);
  ModuleCosts costs = MeasureModules(inputs, host);
  costs.key = ModuleCostsKey(InputsOf(options, files), host);
  StatusLine("");
  if (!keep) return costs;
  try {
    SaveModuleCosts(costs, ModuleCostsDirectory(invocation));
  } catch (const Error& error) {
    LogWarn("the measured module costs are not kept: {}", error.what());
  }
  return costs;
}

}  // namespace moesaic
