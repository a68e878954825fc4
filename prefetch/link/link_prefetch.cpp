#include "prefetch/link/link_prefetch.h"

#include <algorithm>

#include "prefetch/link/moving_average.h"

namespace moesaic {
namespace {

// What is left of a layer that should be over, in layers.
constexpr double kLeastLayerShare = 0.1;
// Of min_gain, what the time of a link costs that no layer waits for.
constexpr double kIdlePrice = 0.25;

}  // namespace

LinkPrefetch::LinkPrefetch(const StepPredictor& step_predictor,
                           std::span<const ExpertIndex> experts)
    : look_ahead_(step_predictor.look_ahead()),
      min_gain_(step_predictor.options().min_gain),
      worth_(step_predictor.layers(), step_predictor.shape().num_experts,
             step_predictor.options().keep_per_iteration) {
  const auto all = static_cast<size_t>(step_predictor.layers().num_layers()) *
                   static_cast<size_t>(step_predictor.shape().num_experts);
  unreadable_.assign(all, 0);
  elsewhere_.assign(all, experts.empty() ? 0 : 1);
  for (const ExpertIndex expert : experts) elsewhere_[static_cast<size_t>(expert)] = 0;
}

void LinkPrefetch::TakeOver(const StepPredictor& step_predictor) {
  if (taken_over_ == step_predictor.predictions()) return;
  taken_over_ = step_predictor.predictions();
  worth_.Update(step_predictor);
}

// What lies between two steps is no layer's time.
void LinkPrefetch::StepBegan(int64_t now_ns) {
  phase_ = Phase::kBeforeStep;
  ready_ns_ = now_ns;
}

void LinkPrefetch::LayerBegan(int64_t now_ns) {
  if (phase_ == Phase::kReady) MovingAverage(static_cast<double>(now_ns - ready_ns_), layer_ns_);
  phase_ = Phase::kWaiting;
  began_ns_ = now_ns;
}

void LinkPrefetch::LayerReady(int64_t now_ns) {
  if (phase_ != Phase::kWaiting) return;
  phase_ = Phase::kReady;
  ready_ns_ = now_ns;
  MovingAverage(static_cast<double>(now_ns - began_ns_), waited_ns_);
}

// What a copy that was not needed costs is that a layer may come to need the link meanwhile.
double LinkPrefetch::Price() const {
  const double waited = layer_ns_ > 0 ? waited_ns_ / (waited_ns_ + layer_ns_) : 1;
  return min_gain_ * (kIdlePrice + (1 - kIdlePrice) * waited);
}

std::optional<LinkPrefetch::Candidate> LinkPrefetch::Next(const ExpertCache& cache, double copy_ns,
                                                          int64_t now_ns) const {
  double victim_worth = 0;
  if (cache.free_slots() == 0) {
    const std::optional<double> worth = cache.VictimPriority(now_ns);
    if (!worth) return std::nullopt;
    if (cache.policy().keeps_by_worth()) victim_worth = *worth;
  }
  const double passed_ns =
      phase_ == Phase::kWaiting ? 0.0 : static_cast<double>(now_ns - ready_ns_);
  // A layer that lasts longer than the others ends at some time all the same.
  const double to_next_ns = std::max(kLeastLayerShare * layer_ns_, layer_ns_ - passed_ns);
  const auto copies_before = [&](int distance) {
    if (copy_ns <= 0 || layer_ns_ <= 0) return 1.0;
    return (to_next_ns + (distance - 1) * layer_ns_) / copy_ns;
  };
  const auto absent = [&](ExpertIndex expert) {
    return cache.state(expert) == ExpertCache::State::kAbsent;
  };
  return Best(absent, copies_before, victim_worth);
}

std::optional<LinkPrefetch::Candidate> LinkPrefetch::Best(FunctionRef<bool(ExpertIndex)> absent,
                                                          FunctionRef<double(int)> copies_before,
                                                          double victim_worth) const {
  Candidate best;
  double best_gain = 0;
  const double price = Price();
  for (int distance = 1; distance <= look_ahead_; ++distance) {
    const ExpertIndex first = worth_.LayerAt(distance) * worth_.num_experts();
    const double arrives = std::min(1.0, copies_before(distance));
    for (ExpertIndex expert = first; expert < first + worth_.num_experts(); ++expert) {
      const double worth = worth_.Worth(expert) - price;
      const double gain = (worth - victim_worth) * arrives;
      if (gain <= best_gain || elsewhere_[static_cast<size_t>(expert)] != 0 ||
          unreadable_[static_cast<size_t>(expert)] != 0 || !absent(expert)) {
        continue;
      }
      best_gain = gain;
      best = {expert, worth};
    }
  }
  if (best.expert == kNoExpert) return std::nullopt;
  return best;
}

}  // namespace moesaic
