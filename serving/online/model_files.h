// ModelFiles: the model on disk, opened and checked but not loaded. Opened once, at start-up; plans
// are made with it, and the engine reads weights and experts from it.
#pragma once

#include <memory>

#include "core/config/model_config.h"
#include "core/io/checkpoint.h"
#include "core/io/expert_source.h"
#include "core/io/shared_memory.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/tensor_source.h"
#include "serving/online/engine_options.h"

namespace moesaic {

struct ModelFiles {
  ModelConfig config;
  // Those of this CPU, with the choices of its profile; experts are packed by them.
  std::unique_ptr<const CpuKernels> kernels;
  std::unique_ptr<Checkpoint> checkpoint;  // null with dummy weights
  std::unique_ptr<TensorSource> tensors;
  std::unique_ptr<ExpertSource> experts;
  // Whether this process fills memory that is shared; null where it is not, or nothing is loaded.
  std::unique_ptr<const ShareClaim> share;
};

// Throws Error: kNotFound, kCorrupt, kUnsupported (the files), kInvalidArgument (random experts
// without a store).
ModelFiles OpenModelFiles(const EngineOptions& options);

// The same for plans that nothing is loaded for: of random experts without a store, and of a model
// without any weights (config.json alone), experts have their sizes only and cannot be read.
ModelFiles OpenModelFilesToPlan(const EngineOptions& options);

}  // namespace moesaic
