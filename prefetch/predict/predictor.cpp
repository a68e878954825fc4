#include "prefetch/predict/predictor.h"

#include "core/base/error.h"
#include "prefetch/predict/blend_predictor.h"
#include "prefetch/predict/count_predictors.h"
#include "prefetch/predict/eamc_predictor.h"
#include "prefetch/predict/next_gate_predictor.h"

namespace moesaic {

std::unique_ptr<Predictor> MakePredictor(std::string_view name, const PredictorShape& shape,
                                         const CpuKernels& kernels, NextGate* gates) {
  if (name == "next-gate") {
    if (gates == nullptr) {
      Fail(ErrorKind::kInvalidArgument,
           "--predictor next-gate: it applies a model's routers to its hidden states, and here are "
           "none (a recorded routing has none, nor has --gate-look-ahead 0); use blend");
    }
    return std::make_unique<NextGatePredictor>(shape, kernels, *gates, false);
  }
  if (name == "blend" && gates != nullptr) {
    return std::make_unique<NextGatePredictor>(shape, kernels, *gates, true);
  }
  if (name == "blend") return std::make_unique<BlendPredictor>(shape, kernels);
  if (name == "eamc") return MakeEamcPredictor(shape, kernels);
  if (name == "transition") return MakeTransitionPredictor(shape);
  if (name == "request-eam") return MakeRequestEamPredictor(shape);
  if (name == "recency") return MakeRecencyPredictor(shape);
  if (name == "frequency") return MakeFrequencyPredictor(shape);
  if (name == "dependency") return MakeDependencyPredictor(shape);
  Fail(ErrorKind::kInvalidArgument, "--predictor: '{}' is not known; use {}", name,
       PredictorNames());
}

std::string PredictorNames() {
  return "blend, next-gate, transition, eamc, request-eam, recency, frequency or dependency";
}

}  // namespace moesaic
