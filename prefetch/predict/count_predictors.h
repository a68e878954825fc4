// Predictors that count and need the model's shape only, by name. See predictor.h for what they are
// asked and docs/predictors.md for what they are worth. A new one is a class and a row in
// count_predictors.cpp.
//
// Thread contract: as Predictor.
#pragma once

#include <memory>
#include <span>

#include "core/base/named.h"
#include "prefetch/predict/predictor.h"

namespace moesaic {

using MakeCountingPredictor = std::unique_ptr<Predictor> (*)(const PredictorShape& shape);

std::span<const Named<MakeCountingPredictor>> CountingPredictors();

}  // namespace moesaic
