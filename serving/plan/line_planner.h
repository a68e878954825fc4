// PlanLines: how many lines of a server's batches run at once, and how many tokens their module
// batches have (serving/online/module_batch_plan.h), from what the model's modules were measured to
// take on this machine. What runs beside requests leaves memory to them: of the sizes that are
// predicted to be about as fast as the fastest it is the smallest.
//
// Functions of their arguments; a second at most.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "core/perf/module_costs.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"

namespace moesaic {

struct PlannedLines {
  int64_t sequences = 0;
  int64_t tokens = 0;
  double tokens_per_s = 0;  // prompts and answers, with nobody beside them
};

// Nobody knows the lines when a server starts: they are taken to have a prompt of so many tokens
// and an answer of so many, or less where the context is shorter.
constexpr int64_t kLinePromptTokens = 256;
constexpr int64_t kLineAnswerTokens = 128;

// What so many lines would compute a second in module batches of so many tokens, as `plan` has
// experts, keys and values.
double PredictLines(const EngineOptions& options, const ModelConfig& config, const EnginePlan& plan,
                    const ModuleCosts& costs, int64_t sequences, int64_t tokens);

// `plan` by rule, with module batches. What the options fix (--batch-num-seqs,
// --batch-num-batched-tokens) is kept.
PlannedLines PlanLines(const EngineOptions& options, const ModelConfig& config,
                       const EnginePlan& plan, const ModuleCosts& costs);

}  // namespace moesaic
