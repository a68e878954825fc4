#include "serving/cli/serving_setup.h"

#include <unistd.h>

#include <ctime>
#include <utility>

#include "core/base/logging.h"
#include "serving/cli/machine.h"
#include "serving/cli/output.h"
#include "serving/text/chat_template.h"

namespace moesaic {

void SetUpLogging(const CommandLine& line, const RuntimeConfig& config,
                  std::string_view default_level) {
  const bool given = line.table().origin("log-level") != "default";
  InitLogging(config.log_format == "json" ? LogFormat::kJson : LogFormat::kText,
              given ? std::string_view(config.log_level) : default_level);
  for (const std::string& warning : line.warnings()) LogWarn("{}", warning);
}

LoadedModel LoadModel(const RuntimeConfig& config, const std::string& model_name,
                      const Invocation& invocation, MetricsRegistry& metrics) {
  const Topology topology = ReadTopology();
  ApplyNumaPolicy(ParseNumaPolicy(config.numa, topology));
  EngineOptions options = EngineOptionsFrom(config, model_name, topology);
  LoadedModel loaded;
  loaded.plan = PlanEngine(options);
  ChooseReading(loaded.plan, invocation, topology, options);
  loaded.plan = PlanEngine(options);  // what is read at a time takes memory, too
  loaded.model.names = {model_name};
  loaded.model.created_unix_s = std::time(nullptr);
  loaded.model.chat_template = LoadChatTemplate(options.model_dir);
  loaded.model.engine = CreateEngine(options, metrics);
  return loaded;
}

LoadedBatchModel LoadBatchModel(const RuntimeConfig& config, const CommandLine& line,
                                const std::string& model_name, const Invocation& invocation,
                                const BatchWorkload& workload) {
  const Topology topology = ReadTopology();
  ApplyNumaPolicy(ParseNumaPolicy(config.numa, topology));
  EngineOptions options = EngineOptionsFrom(config, model_name, topology);
  const auto chosen_here = [&](const char* name) { return line.table().origin(name) == "default"; };
  if (chosen_here("max-num-seqs")) options.max_num_seqs = 0;
  if (chosen_here("max-num-batched-tokens")) options.max_num_batched_tokens = 0;
  BatchPlan plan = PlanBatch(options, workload);
  EnginePlan reading;
  reading.slot_bytes = plan.slot_bytes;
  reading.all_experts_bytes = plan.all_experts_bytes;
  reading.expert_budget_bytes = static_cast<uint64_t>(plan.sizes.expert_slots) * plan.slot_bytes;
  ChooseReading(reading, invocation, topology, options);
  plan = PlanBatch(options, workload);  // what is read at a time takes memory, too
  LoadedBatchModel loaded;
  loaded.engine = std::make_shared<BatchEngine>(options, plan);
  loaded.model.names = {model_name};
  loaded.model.created_unix_s = std::time(nullptr);
  loaded.model.chat_template = LoadChatTemplate(options.model_dir);
  loaded.model.engine = loaded.engine;
  return loaded;
}

}  // namespace moesaic
