#include "prefetch/predict/predictor.h"

#include <utility>

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

// Those that need more than the shape.
constexpr Named<MakeFunction> kPredictors[] = {
    {"blend", MakeBlend},
    {"next-gate", MakeNextGateAlone},
    {"eamc", MakeEamc},
};

}  // namespace

std::unique_ptr<Predictor> MakePredictor(std::string_view name, const PredictorShape& shape,
                                         const CpuKernels& kernels, NextGate* gates) {
  if (const auto* predictor = FindNamed(kPredictors, name)) {
    return predictor->value(shape, kernels, gates);
  }
  if (const auto* counting = FindNamed(CountingPredictors(), name)) return counting->value(shape);
  Fail(ErrorKind::kInvalidArgument, "--predictor: '{}' is not known; use {}", name,
       OneOfText(PredictorNames()));
}

std::vector<std::string> PredictorNames() {
  std::vector<std::string> names = NamesOf(kPredictors);
  for (std::string& name : NamesOf(CountingPredictors())) names.push_back(std::move(name));
  return names;
}

}  // namespace moesaic
