// What `run`, `serve` and `batch` do alike: logging, and from settings to a loaded model.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "serving/api/served_model.h"
#include "serving/batch/batch_engine.h"
#include "serving/cli/batch_job.h"
#include "serving/cli/command_line.h"
#include "serving/online/create_engine.h"

namespace moesaic {

// Logs as the settings say; at `default_level` where they do not. Logs the command line's warnings.
void SetUpLogging(const CommandLine& line, LogOptions options, LogLevel default_level);

struct LoadedModel {
  ServedModel model;
  EnginePlan plan;
};

// Plans, chooses how experts are read, loads. `metrics` outlives the engine.
LoadedModel LoadModel(const EngineOptions& given, const Invocation& invocation,
                      MetricsRegistry& metrics);

// As LoadModel, an engine of throughput mode. `engine` is the model's.
struct LoadedBatchModel {
  ServedModel model;
  std::shared_ptr<BatchEngine> engine;  // shared with the model
};
// Settings that were not given (max-num-seqs, max-num-batched-tokens) are planned for the job. What
// the plan rests on is measured when it was not before and the job is long enough. Sets whether
// prompts go through the chat template (unless `raw`).
LoadedBatchModel LoadBatchModel(const EngineOptions& given, const CommandLine& line,
                                const Invocation& invocation, bool raw, BatchJobOptions& job);

}  // namespace moesaic
