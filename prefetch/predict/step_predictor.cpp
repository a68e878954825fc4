#include "prefetch/predict/step_predictor.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

StepPredictor::StepPredictor(const PredictorShape& shape, Predictor& predictor,
                             const PrefetchOptions& options, SparseLayers layers)
    : shape_(shape),
      predictor_(predictor),
      options_(options),
      layers_(std::move(layers)),
      near_(std::min(options.look_ahead, shape.num_layers - 1)),
      one_(static_cast<size_t>(shape.num_experts)),
      predicted_(static_cast<size_t>(near_ + 1) * static_cast<size_t>(shape.num_experts)) {
  CHECK_EQ(layers_.count(), shape.num_layers);
  step_.reserve(static_cast<size_t>(shape.max_requests));
}

void StepPredictor::BeginRequest(int request) {
  predictor_.BeginRequest(request);
  ++requests_;
}

void StepPredictor::EndRequest(int request) {
  predictor_.EndRequest(request);
  --requests_;
}

void StepPredictor::BeginStep(std::span<const StepRequest> requests) {
  step_.assign(requests.begin(), requests.end());
  if (step_.empty()) return;
  for (const StepRequest& request : step_) {
    predictor_.BeginIteration(request.request, request.token, request.num_rows);
  }
  Predict(-1);
}

void StepPredictor::OnRouting(int layer, std::span<const int32_t> experts) {
  if (step_.empty()) return;
  const int number = layers_.number(layer);
  for (const StepRequest& request : step_) {
    predictor_.Observe(request.request, number, request.Part(experts, shape_.top_k));
  }
  Predict(number);
}

void StepPredictor::BeginBeside(std::span<const StepRequest> requests) {
  for (const StepRequest& request : requests) {
    predictor_.BeginIteration(request.request, request.token, request.num_rows);
  }
}

void StepPredictor::ObserveBeside(std::span<const StepRequest> requests, int layer,
                                  std::span<const int32_t> experts) {
  const int number = layers_.number(layer);
  for (const StepRequest& request : requests) {
    predictor_.Observe(request.request, number, request.Part(experts, shape_.top_k));
  }
}

// What was just observed changes the layers ahead, and most the layer itself: its next use is an
// iteration away.
void StepPredictor::Predict(int number) {
  ++predictions_;
  predicted_at_ = number;
  for (int row = 0; row < near_; ++row) PredictRow(row + 1, Row(row));
  if (number >= 0) PredictRow(shape_.num_layers, Row(near_));
}

void StepPredictor::PredictRow(int distance, std::span<float> row) {
  if (step_.size() == 1) {
    predictor_.Predict(step_.front().request, distance, row);
    return;
  }
  std::fill(row.begin(), row.end(), 1.0f);  // that no request uses it
  for (const StepRequest& request : step_) {
    predictor_.Predict(request.request, distance, one_);
    for (size_t j = 0; j < row.size(); ++j) row[j] *= 1 - one_[j];
  }
  for (float& p : row) p = 1 - p;
}

std::span<const float> StepPredictor::predicted(int distance) const {
  CHECK(distance <= near_ || (distance == shape_.num_layers && predicted_at_ >= 0));
  return Row(std::min(distance - 1, near_));
}

}  // namespace moesaic
