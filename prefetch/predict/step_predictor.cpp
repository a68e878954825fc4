#include "prefetch/predict/step_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Of lately_used, per token. From 0.9 to 0.97 gpt-oss-20b and DeepSeek-V2-Lite wait alike.
constexpr float kKeepUse = 0.93f;

}  // namespace

StepPredictor::StepPredictor(const PredictorShape& shape, Predictor& predictor,
                             const PrefetchOptions& options, SparseLayers layers)
    : shape_(shape),
      predictor_(predictor),
      options_(options),
      layers_(std::move(layers)),
      near_(std::min(options.look_ahead, shape.num_layers - 1)),
      one_(static_cast<size_t>(shape.num_experts)),
      used_by_none_(static_cast<size_t>(shape.num_experts)),
      lately_used_(static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_experts)),
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
  NoteUse(number, experts);
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

// A request of several rows counts as so many tokens, each with the mean of their choices: what a
// prompt's rows use together says little about a token's.
void StepPredictor::NoteUse(int number, std::span<const int32_t> experts) {
  std::fill(used_by_none_.begin(), used_by_none_.end(), 1.0f);
  int64_t rows = 1;
  for (const StepRequest& request : step_) {
    rows = std::max(rows, request.num_rows);
    std::fill(one_.begin(), one_.end(), 0.0f);
    for (const int32_t expert : request.Part(experts, shape_.top_k)) {
      one_[static_cast<size_t>(expert)] += 1.0f / static_cast<float>(request.num_rows);
    }
    for (size_t j = 0; j < one_.size(); ++j) used_by_none_[j] *= 1 - std::min(one_[j], 1.0f);
  }
  const float keep = std::pow(kKeepUse, static_cast<float>(rows));
  float* lately = &lately_used_[static_cast<size_t>(number) * one_.size()];
  for (size_t j = 0; j < one_.size(); ++j) {
    lately[j] = keep * lately[j] + (1 - keep) * (1 - used_by_none_[j]);
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

std::span<const float> StepPredictor::lately_used() const {
  CHECK_GE(predicted_at_, 0);
  return std::span(lately_used_)
      .subspan(static_cast<size_t>(predicted_at_) * one_.size(), one_.size());
}

std::span<const float> StepPredictor::predicted(int distance) const {
  CHECK(distance <= near_ || (distance == shape_.num_layers && predicted_at_ >= 0));
  return Row(std::min(distance - 1, near_));
}

}  // namespace moesaic
