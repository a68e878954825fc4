#include "serving/startup/resolve_batch.h"

#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "serving/plan/batch_planner.h"
#include "serving/startup/choose_reading.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

// A shorter job ends sooner than its modules are measured.
constexpr int64_t kLeastPlannedTokens = 4096;

// nullopt: the batch is sized by rule. `asked` has the read sizes that were left open, `model`
// those that were chosen.
std::optional<ModuleCosts> CostsFor(const EngineOptions& asked, const OpenedModel& model,
                                    PlannedJob& job, const Machine& machine,
                                    const MeasuringProgress& progress) {
  if (!IsPredicted(model.options)) return std::nullopt;
  std::string why;
  auto costs = CachedModuleCosts(asked, model.files, machine, &why);
  const int64_t tokens = job.workload.prompt_tokens() + job.workload.generated_tokens();
  if (costs || tokens < kLeastPlannedTokens) return costs;
  LogInfo("measuring the model's modules ({})", why);
  try {
    return MeasureModuleCosts(asked, model.options, model.files, std::move(job.sample_prompts),
                              true, machine, progress);
  } catch (const Error& error) {
    LogWarn("the batch is sized by rule: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace

OpenedModel OpenForBatch(const EngineOptions& asked, const Machine& machine) {
  OpenedModel model;
  model.options = OptionsOnMachine(asked, machine);
  ApplyNumaPolicy(*model.options.machine.numa);
  model.files = OpenModelFiles(model.options);
  return model;
}

BatchSetup ResolveBatch(OpenedModel model, PlannedJob job, const Machine& machine,
                        const MeasuringProgress& progress) {
  const EngineOptions asked = model.options;
  const BatchPlan by_rule = PlanBatch(asked, model.files, MeansOf(job.workload));
  const uint64_t budget_bytes =
      static_cast<uint64_t>(by_rule.sizes.expert_slots) * by_rule.slot_bytes;
  ChooseReading({.experts = *model.files.experts,
                 .all_fit = budget_bytes >= by_rule.all_experts_bytes,
                 .use = ReadUse::kStream},
                machine, model.options);
  const auto costs = CostsFor(asked, model, job, machine, progress);
  // What is read at a time takes memory, too.
  BatchPlan plan =
      PlanBatchJob(model.options, model.files, job.workload, costs ? &*costs : nullptr);
  return {std::move(model.options), std::move(model.files), std::move(plan)};
}

}  // namespace moesaic
