// What `run`, `serve` and `batch` do alike: logging, and from settings to a loaded model.
#pragma once

#include <functional>
#include <memory>

#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "serving/api/chat_format_options.h"
#include "serving/api/served_model.h"
#include "serving/batch/batch_engine.h"
#include "serving/cli/command_line.h"
#include "serving/jobs/batch_job.h"
#include "serving/model/load_progress.h"
#include "serving/online/engine_setup.h"
#include "serving/startup/machine.h"
#include "serving/startup/resolve_batch.h"

namespace moesaic {

// Logs as the settings say; at `default_level` where they do not. Logs the command line's warnings.
void SetUpLogging(const CommandLine& line, LogOptions options, LogLevel default_level);

// EngineOptions::grammar_bytes of who serves structured output; 0 in a build without.
uint64_t GrammarBytes(const MemorySize& asked, const MachineShare& share, const Machine& machine);

struct LoadedModel {
  ServedModel model;
  EnginePlan plan;
};

// What an engine has to do with those of other models in the process; nothing: it is alone.
struct AmongOthers {
  // Who keeps the engine besides the model; null: nobody.
  std::function<std::shared_ptr<Engine>(std::unique_ptr<Engine>)> hold = nullptr;
  std::shared_ptr<StepTurns::Member> turn = nullptr;  // shared with its parts
  LoadProgress::Tell on_progress = nullptr;           // of the engine's (CreateEngine)
};

// Resolves and loads. `metrics` outlives the engine.
LoadedModel LoadModel(const EngineOptions& asked, const ChatFormatOptions& chat,
                      const Machine& machine, MetricsRegistry& metrics,
                      const AmongOthers& others = {});

// As LoadModel, an engine of throughput mode. `engine` is the model's.
struct LoadedBatchModel {
  ServedModel model;
  std::shared_ptr<BatchEngine> engine;  // shared with the model
};
// Reads the job, and sets whether its prompts go through the chat template (unless `raw`). What is
// measured for the plan is shown on the status line.
LoadedBatchModel LoadBatchModel(const EngineOptions& asked, const ChatFormatOptions& chat,
                                const Machine& machine, bool raw, BatchJobOptions& job);
// Of a job that is known.
LoadedBatchModel LoadBatchModel(const EngineOptions& asked, const ChatFormatOptions& chat,
                                const Machine& machine, PlannedJob job);

}  // namespace moesaic
