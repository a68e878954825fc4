#include "prefetch/predictor.h"

#include "core/base/error.h"
#include "prefetch/blend_predictor.h"
#include "prefetch/count_predictors.h"
#include "prefetch/eamc_predictor.h"

namespace moesaic {

std::unique_ptr<Predictor> MakePredictor(std::string_view name, const PredictorShape& shape,
                                         const CpuKernels& kernels) {
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
  return "blend, transition, eamc, request-eam, recency, frequency or dependency";
}

}  // namespace moesaic
