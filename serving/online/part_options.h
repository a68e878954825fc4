// The options of an engine's parts, derived from the engine's own and its plan: what plans count
// and engines make.
//
// Functions of their arguments.
#pragma once

#include <cstdint>
#include <memory>

#include "core/config/model_config.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/predict/next_gate.h"
#include "prefetch/predict/predictor.h"
#include "serving/model/model.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"

namespace moesaic {

ModelLimits LimitsOf(const EngineOptions& options, const EnginePlan& plan);
PredictorShape PredictorShapeOf(const EngineOptions& options, const ModelConfig& config);
// Slots behind one link whose experts come and go, of the link that has most; as many as there may
// ever be.
int64_t LinkSlots(const EnginePlan& plan);
// Whether steps on the first device look up its experts by themselves.
bool LooksUpExperts(const EnginePlan& plan);
// Null where no router can predict: another predictor was asked for, or another routing.
std::unique_ptr<NextGate> MakeNextGate(const EngineOptions& options, const ModelConfig& config);
ExpertLoaderOptions LoaderOptionsOf(const EngineOptions& options, uint64_t budget_bytes);

}  // namespace moesaic
