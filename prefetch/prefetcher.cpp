#include "prefetch/prefetcher.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {

Prefetcher::Prefetcher(const PredictorShape& shape, Predictor& predictor,
                       const PrefetchOptions& options)
    : shape_(shape),
      predictor_(predictor),
      options_(options),
      worth_(shape.num_layers, shape.num_experts, options.keep_per_iteration),
      one_(static_cast<size_t>(shape.num_experts)),
      none_(static_cast<size_t>(shape.num_experts)) {
  running_.reserve(static_cast<size_t>(shape.max_requests));
}

void Prefetcher::BeginRequest(int request) { predictor_.BeginRequest(request); }

void Prefetcher::EndRequest(int request) { predictor_.EndRequest(request); }

void Prefetcher::BeginIteration(int request, int32_t token, int64_t rows) {
  if (worth_.position() >= 0) running_.clear();  // a new step
  running_.push_back(request);
  worth_.SetPosition(-1);
  predictor_.BeginIteration(request, token, rows);
}

void Prefetcher::OnRouting(int request, int layer, std::span<const int32_t> experts) {
  predictor_.Observe(request, layer, experts);
}

void Prefetcher::Update(int layer) {
  worth_.SetPosition(layer);
  // What was just observed changes the layers ahead, and most the layer itself: its next use is an
  // iteration away.
  const auto update = [this](int distance) {
    std::fill(none_.begin(), none_.end(), 1.0f);
    for (const int request : running_) {
      predictor_.Predict(request, distance, one_);
      for (size_t j = 0; j < one_.size(); ++j) none_[j] *= 1 - one_[j];
    }
    for (float& p : none_) p = 1 - p;
    worth_.SetLayer((worth_.position() + distance) % shape_.num_layers, none_);
  };
  const int near = std::min(options_.look_ahead, shape_.num_layers - 1);
  for (int distance = 1; distance <= near; ++distance) update(distance);
  if (layer >= 0) update(shape_.num_layers);
}

std::optional<Prefetcher::Candidate> Prefetcher::NextCandidate(
    FunctionRef<bool(ExpertIndex)> may_copy, FunctionRef<double(int)> copies_before,
    double victim_worth) const {
  Candidate best;
  double best_gain = 0;
  const int near = std::min(options_.look_ahead, shape_.num_layers - 1);
  for (int distance = 1; distance <= near; ++distance) {
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
