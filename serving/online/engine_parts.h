// What plans and engines both derive from the options. Internal to serving/online and
// serving/batch.
#pragma once

#include <cstdint>
#include <memory>

#include "core/io/checkpoint.h"
#include "core/io/expert_source.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/predict/next_gate.h"
#include "prefetch/predict/predictor.h"
#include "serving/model/model.h"
#include "serving/model/tensor_source.h"
#include "serving/online/create_engine.h"

namespace moesaic {

class Tokenizer;
struct LoopParts;

// Program text, libraries, stacks, tokenizer, allocator slack: measured as resident size of an idle
// server less its ledger (about 90 MiB with a 150,000-token vocabulary).
constexpr uint64_t kProcessBytes = uint64_t{96} << 20;

ModelLimits LimitsOf(const EngineOptions& options, const EnginePlan& plan);
PredictorShape PredictorShapeOf(const EngineOptions& options, const ModelConfig& config);
// Slots behind one link, of the link that has most.
int64_t LinkSlots(const EnginePlan& plan);
// Whether steps on the first device look up its experts by themselves.
bool LooksUpExperts(const EnginePlan& plan);
// Null where no router can predict: another predictor was asked for, or another routing.
std::unique_ptr<NextGate> MakeNextGate(const EngineOptions& options, const ModelConfig& config);
ExpertLoaderOptions LoaderOptionsOf(const EngineOptions& options, uint64_t budget_bytes);

// The model on disk, opened and checked but not loaded.
struct ModelFiles {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;  // null with dummy weights
  std::unique_ptr<TensorSource> tensors;
  std::unique_ptr<ExpertSource> experts;
};
// `kernels` pack experts; without, those of the type of the weights.
ModelFiles OpenModelFiles(const EngineOptions& options, const CpuKernels& kernels);
ModelFiles OpenModelFiles(const EngineOptions& options);

// Random weights may come without a tokenizer; a real model may not.
std::unique_ptr<Tokenizer> LoadTokenizerOf(const EngineOptions& options, const ModelConfig& config);

// Opens the model and fills in what requests are made with, kernels and threads.
ModelFiles OpenParts(const EngineOptions& options, LoopParts& parts);

EnginePlan PlanEngine(const EngineOptions& options, const ModelFiles& files);

}  // namespace moesaic
