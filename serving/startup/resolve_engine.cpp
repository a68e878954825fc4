#include "serving/startup/resolve_engine.h"

#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "serving/plan/line_planner.h"
#include "serving/startup/choose_reading.h"
#include "serving/startup/machine_options.h"
#include "serving/startup/measured_costs.h"

namespace moesaic {

namespace {

// Of what the rule's sizes are predicted to do.
constexpr double kNoLess = 0.95;

// Lines of batches in sizes that the measured times of the model's modules plan, where there are
// any. `asked`: with the read sizes left open that were.
void SizeLines(const EngineOptions& asked, const Machine& machine, EngineSetup& setup) {
  const ModuleBatchPlan& by_rule = setup.plan.module_batches;
  if (by_rule.tokens == 0 || by_rule.sequences == 0) return;
  std::string why;
  const std::optional<ModuleCosts> costs = CachedModuleCosts(asked, setup.files, machine, &why);
  if (!costs) {
    LogInfo(
        "lines of batches: {} at once, {} tokens together, by rule ({}; `moesaic profile "
        "--model` measures the model's modules)",
        by_rule.sequences, by_rule.tokens, why);
    return;
  }
  const ModelConfig& config = setup.files.config;
  const double rule_tokens_per_s =
      PredictLines(setup.options, config, setup.plan, *costs, by_rule.sequences, by_rule.tokens);
  PlannedLines lines = PlanLines(setup.options, config, setup.plan, *costs);
  EngineOptions options = setup.options;
  options.batch_num_seqs = lines.sequences;
  options.batch_num_batched_tokens = lines.tokens;
  std::optional<EnginePlan> plan;
  try {
    plan = PlanEngine(options, setup.files);
    // What lines take besides their rows may have come out of the experts.
    lines.tokens_per_s =
        PredictLines(options, config, *plan, *costs, lines.sequences, lines.tokens);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kResourceExhausted) throw;
  }
  if (!plan || lines.tokens_per_s < kNoLess * rule_tokens_per_s) {
    lines = {by_rule.sequences, by_rule.tokens, rule_tokens_per_s};
  } else {
    setup.options = std::move(options);
    setup.plan = std::move(*plan);
  }
  setup.plan.module_batches.predicted_tokens_per_s = lines.tokens_per_s;
  LogInfo(
      "lines of batches: {} at once, {} tokens together: {:.0f} tokens/s are predicted from "
      "measured times",
      lines.sequences, lines.tokens, lines.tokens_per_s);
}

}  // namespace

EngineSetup ResolveEngine(const EngineOptions& asked, const Machine& machine) {
  EngineOptions options = OptionsOnMachine(asked, machine);
  ApplyNumaPolicy(*options.machine.numa);
  EngineSetup setup = SetUpEngine(options);
  const ReadDemand demand = {
      .experts = *setup.files.experts,
      .all_fit = setup.plan.expert_budget_bytes >= setup.plan.all_experts_bytes};
  if (ChooseReading(demand, machine, setup.options)) {
    setup.plan =
        PlanEngine(setup.options, setup.files);  // what is read at a time takes memory, too
  }
  SizeLines(options, machine, setup);
  return setup;
}

}  // namespace moesaic
