// StepPredictor: turns the routing of the requests of a step into the probability that each expert
// of the layers ahead is used. Links take it over as worth (prefetch/evict/expert_worth) and decide
// by it.
//
// Thread contract: one thread (the engine's). No allocation after construction but in the
// predictor's BeginRequest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefetch/predict/predictor.h"
#include "prefetch/predict/sparse_layers.h"

namespace moesaic {

// The defaults were swept on gpt-oss-20b's trace (docs/experiments/latency.md).
struct PrefetchOptions {
  int look_ahead = 8;               // layers; candidates are taken from these
  double min_gain = 0.2;            // the price of a link that layers wait for, in units of worth
  double keep_per_iteration = 0.1;  // ExpertWorth's discount
};

// A request's part of a step.
struct StepRequest {
  int32_t request = 0;  // below PredictorShape::max_requests
  int32_t token = Predictor::kUnknownToken;
  int64_t first_row = 0;
  int64_t num_rows = 0;

  // Its part of the step's choices [rows, top_k].
  std::span<const int32_t> Part(std::span<const int32_t> experts, int64_t top_k) const {
    return experts.subspan(static_cast<size_t>(first_row * top_k),
                           static_cast<size_t>(num_rows * top_k));
  }
};

class StepPredictor {
 public:
  // `predictor` must outlive it. layers: those of the model; shape.num_layers of them have experts.
  StepPredictor(const PredictorShape& shape, Predictor& predictor, const PrefetchOptions& options,
                SparseLayers layers);
  // All layers have experts.
  StepPredictor(const PredictorShape& shape, Predictor& predictor, const PrefetchOptions& options)
      : StepPredictor(shape, predictor, options, SparseLayers(shape.num_layers)) {}

  void BeginRequest(int request);
  void EndRequest(int request);
  bool idle() const { return requests_ == 0; }  // no request has begun and not ended
  // A forward pass over these requests. What was observed before (and is computed again after a
  // preemption) is left out; a step of nothing else changes no prediction.
  void BeginStep(std::span<const StepRequest> requests);
  // Their choice in a layer of the model. experts: [rows, top_k] of the step.
  void OnRouting(int layer, std::span<const int32_t> experts);

  // Of requests that are not in the step, whose layers are far apart in time: an iteration of each
  // begins, and their choice in a layer of the model is known, [rows, top_k] of all of them.
  // Nothing is predicted.
  void BeginBeside(std::span<const StepRequest> requests);
  void ObserveBeside(std::span<const StepRequest> requests, int layer,
                     std::span<const int32_t> experts);

  // How often something was predicted. That is in BeginStep and OnRouting.
  uint64_t predictions() const { return predictions_; }
  // The number of the layer behind whose routing that was; -1: at the beginning of a step.
  int predicted_at() const { return predicted_at_; }
  // [experts] of being used in the layer `distance` sparse layers ahead: 1 to look_ahead(), and,
  // behind a layer's routing, shape().num_layers, which is that layer the next time.
  std::span<const float> predicted(int distance) const;
  int look_ahead() const { return near_; }
  // [experts] How often steps have lately used each in the layer behind whose routing that was: the
  // share of them, older ones weighing 0.93 of the next each. Not at the beginning of a step.
  std::span<const float> lately_used() const;

  const SparseLayers& layers() const { return layers_; }
  const PredictorShape& shape() const { return shape_; }
  const PrefetchOptions& options() const { return options_; }

 private:
  void NoteUse(int number, std::span<const int32_t> experts);
  void Predict(int number);
  void PredictRow(int distance, std::span<float> row);
  std::span<float> Row(int row) {
    const auto experts = static_cast<size_t>(shape_.num_experts);
    return {predicted_.data() + static_cast<size_t>(row) * experts, experts};
  }
  std::span<const float> Row(int row) const { return const_cast<StepPredictor*>(this)->Row(row); }

  const PredictorShape shape_;
  Predictor& predictor_;
  const PrefetchOptions options_;
  const SparseLayers layers_;
  const int near_;  // layers ahead that are predicted
  int requests_ = 0;
  std::vector<StepRequest> step_;
  std::vector<float> one_;           // [experts] of one request
  std::vector<float> used_by_none_;  // [experts]
  std::vector<float> lately_used_;   // [sparse layers, experts]
  uint64_t predictions_ = 0;
  int predicted_at_ = -1;  // number of the layer that predicted_ was made behind, -1: of none
  // [look-ahead + 1, experts] by distance, the last a full turn away
  std::vector<float> predicted_;
};

}  // namespace moesaic
