#include "prefetch/prefetcher.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {

Prefetcher::Prefetcher(const PredictorShape& shape, Predictor& predictor,
                       const PrefetchOptions& options)
    : shape_(shape),
      predictor_(predictor),
      options_(options),
      near_(std::min(options.look_ahead, shape.num_layers - 1)),
      worth_(shape.num_layers, shape.num_experts, options.keep_per_iteration),
      one_(static_cast<size_t>(shape.num_experts)),
      predicted_(static_cast<size_t>(near_ + 1) * static_cast<size_t>(shape.num_experts)) {
  running_.reserve(static_cast<size_t>(shape.max_requests));
}

void Prefetcher::BeginRequest(int request) { predictor_.BeginRequest(request); }

void Prefetcher::EndRequest(int request) { predictor_.EndRequest(request); }

void Prefetcher::BeginIteration(int request, int32_t token, int64_t rows) {
  if (!step_began_) running_.clear();
  step_began_ = true;
  running_.push_back(request);
  predictor_.BeginIteration(request, token, rows);
}

void Prefetcher::OnRouting(int request, int layer, std::span<const int32_t> experts) {
  step_began_ = false;
  predictor_.Observe(request, layer, experts);
}

void Prefetcher::Predict(int layer) {
  predicted_at_ = layer;
  const auto experts = static_cast<size_t>(shape_.num_experts);
  // What was just observed changes the layers ahead, and most the layer itself: its next use is an
  // iteration away.
  for (int row = 0; row <= near_; ++row) {
    if (row == near_ && layer < 0) break;
    const std::span<float> any = {predicted_.data() + static_cast<size_t>(row) * experts, experts};
    std::fill(any.begin(), any.end(), 1.0f);  // that no request uses it
    for (const int request : running_) {
      predictor_.Predict(request, row < near_ ? row + 1 : shape_.num_layers, one_);
      for (size_t j = 0; j < experts; ++j) any[j] *= 1 - one_[j];
    }
    for (float& p : any) p = 1 - p;
  }
}

void Prefetcher::Publish() {
  worth_.SetPosition(predicted_at_);
  const auto experts = static_cast<size_t>(shape_.num_experts);
  for (int row = 0; row <= near_; ++row) {
    if (row == near_ && predicted_at_ < 0) break;
    const int distance = row < near_ ? row + 1 : shape_.num_layers;
    worth_.SetLayer((predicted_at_ + distance) % shape_.num_layers,
                    {predicted_.data() + static_cast<size_t>(row) * experts, experts});
  }
}

std::optional<Prefetcher::Candidate> Prefetcher::NextCandidate(
    FunctionRef<bool(ExpertIndex)> may_copy, FunctionRef<double(int)> copies_before,
    double victim_worth) const {
  Candidate best;
  double best_gain = 0;
  for (int distance = 1; distance <= near_; ++distance) {
    const int layer = (worth_.position() + distance) % shape_.num_layers;
    const double arrives = std::min(1.0, copies_before(distance));
    for (int index = 0; index < shape_.num_experts; ++index) {
      const ExpertIndex expert = layer * shape_.num_experts + index;
      const double worth = worth_.Worth(expert) - options_.min_gain;
      const double gain = (worth - victim_worth) * arrives;
      if (gain <= best_gain || !may_copy(expert)) continue;
      best_gain = gain;
      best = {expert, worth};
    }
  }
  if (best.expert == kNoExpert) return std::nullopt;
  return best;
}

}  // namespace moesaic
