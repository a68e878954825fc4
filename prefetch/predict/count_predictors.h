// Predictors that count: frequency, dependency, recency, request-eam, transition, and the oracle.
// See predictor.h for what they are asked and docs/predictors.md for what they are worth.
//
// Thread contract: as Predictor.
#pragma once

#include <memory>
#include <string_view>

#include "prefetch/predict/predictor.h"

namespace moesaic {

// How often an expert was used per iteration, over all requests (BrainStorm, DeepUM:
// "model-level").
std::unique_ptr<Predictor> MakeFrequencyPredictor(const PredictorShape& shape);
// Every expert of every later layer, alike: what the data flow alone says.
std::unique_ptr<Predictor> MakeDependencyPredictor(const PredictorShape& shape);
// By how many iterations ago the request last used the expert; the probability that goes with an
// age is counted over all requests.
std::unique_ptr<Predictor> MakeRecencyPredictor(const PredictorShape& shape);
// The request's own EAM: its counts per iteration, drawn to an even share while it is young.
std::unique_ptr<Predictor> MakeRequestEamPredictor(const PredictorShape& shape);
// Counts of expert j of layer l + d given expert i of layer l, for the last four layers, combined
// as naive Bayes: logit = prior + sum over the experts used of log P(i | j) / P(i | not j).
std::unique_ptr<Predictor> MakeTransitionPredictor(const PredictorShape& shape);

}  // namespace moesaic
