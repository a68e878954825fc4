#include "prefetch/predict/predictor.h"

#include "core/base/error.h"
#include "core/base/named.h"
#include "prefetch/predict/blend_predictor.h"
#include "prefetch/predict/count_predictors.h"
#include "prefetch/predict/eamc_predictor.h"
#include "prefetch/predict/next_gate_predictor.h"

namespace moesaic {

namespace {

using MakeFunction = std::unique_ptr<Predictor> (*)(const PredictorShape& shape,
                                                    const CpuKernels& kernels, NextGate* gates);

std::unique_ptr<Predictor> MakeBlend(const PredictorShape& shape, const CpuKernels& kernels,
                                     NextGate* gates) {
  if (gates != nullptr) return std::make_unique<NextGatePredictor>(shape, kernels, *gates, true);
  return std::make_unique<BlendPredictor>(shape, kernels);
}

std::unique_ptr<Predictor> MakeNextGateAlone(const PredictorShape& shape, const CpuKernels& kernels,
                                             NextGate* gates) {
  if (gates == nullptr) {
    Fail(ErrorKind::kInvalidArgument,
         "--predictor next-gate: it applies a model's routers to its hidden states, and here are "
         "none (a recorded routing has none, nor has --gate-look-ahead 0); use blend");
  }
  return std::make_unique<NextGatePredictor>(shape, kernels, *gates, false);
}

std::unique_ptr<Predictor> MakeEamc(const PredictorShape& shape, const CpuKernels& kernels,
                                    NextGate*) {
  return MakeEamcPredictor(shape, kernels);
}

// One of those that need the shape only.
template <std::unique_ptr<Predictor> (*kMake)(const PredictorShape&)>
std::unique_ptr<Predictor> OfShape(const PredictorShape& shape, const CpuKernels&, NextGate*) {
  return kMake(shape);
}

constexpr Named<MakeFunction> kPredictors[] = {
    {"blend", MakeBlend},
    {"next-gate", MakeNextGateAlone},
    {"transition", OfShape<MakeTransitionPredictor>},
    {"eamc", MakeEamc},
    {"request-eam", OfShape<MakeRequestEamPredictor>},
    {"recency", OfShape<MakeRecencyPredictor>},
    {"frequency", OfShape<MakeFrequencyPredictor>},
    {"dependency", OfShape<MakeDependencyPredictor>},
};

}  // namespace

std::unique_ptr<Predictor> MakePredictor(std::string_view name, const PredictorShape& shape,
                                         const CpuKernels& kernels, NextGate* gates) {
  const auto* predictor = FindNamed(kPredictors, name);
  if (predictor == nullptr) {
    Fail(ErrorKind::kInvalidArgument, "--predictor: '{}' is not known; use {}", name,
         OneOfText(PredictorNames()));
  }
  return predictor->value(shape, kernels, gates);
}

std::vector<std::string> PredictorNames() { return NamesOf(kPredictors); }

}  // namespace moesaic
