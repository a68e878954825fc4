// ExpertWorth: what each expert would be worth in fast memory, on the one scale that prefetching
// and eviction share: the probability of its next use, discounted by how far ahead that is.
//
//   worth(x) = p(x) * keep_per_iteration ^ (layers until the layer of x is reached / layers)
//
// Of two experts that will be used with the same probability the nearer one is worth more, because
// the farther one can still be fetched meanwhile (Belady's rule, in expectation).
//
// What has a slot is worth more than its next use: when that does not come, it stays for those
// behind it. How often the expert has lately been used says how likely they are:
//
//   keep(x) = (p(x) + (1 - p(x)) * kLaterWorth * share of the last tokens that used x) * discount
//
// A resident leaves by keep(x). What a copy brings in is measured by worth(x) alone: nearly all
// experts that were used lately would be worth a copy otherwise, and few of them come next.
//
// Thread contract: none of its own; guarded by whoever owns the cache. No allocation after
// construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/eviction_policy.h"
#include "cache/expert_grid.h"
#include "prefetch/predict/sparse_layers.h"
#include "prefetch/predict/step_predictor.h"

namespace moesaic {

class ExpertWorth {
 public:
  ExpertWorth(const SparseLayers& layers, int num_experts, double keep_per_iteration);

  // What was predicted last becomes worth. On the thread that predicts.
  void Update(const StepPredictor& step_predictor);
  // The probabilities that the layer's experts are used the next time it is reached. [num_experts]
  void SetLayer(int layer, std::span<const float> probability);
  // How often the layer's experts have lately been used. [num_experts]
  void SetLatelyUsed(int layer, std::span<const float> share);
  // Distances are counted from the sparse layer of this number on; -1: an iteration begins.
  void SetPosition(int number) { position_ = number; }
  // Sparse layers until `layer` is reached, 1 to their count.
  int Distance(int layer) const {
    const int ahead = layers_.number(layer) - position_;
    return ahead > 0 ? ahead : ahead + layers_.count();
  }
  // The layer that is reached after so many sparse layers.
  int LayerAt(int distance) const {
    return layers_.layer((position_ + distance) % layers_.count());
  }

  float probability(ExpertIndex expert) const { return probability_[static_cast<size_t>(expert)]; }
  double Worth(ExpertIndex expert) const {
    return static_cast<double>(probability(expert)) * Discount(expert);
  }

  double KeepWorth(ExpertIndex expert) const {
    const auto p = static_cast<double>(probability(expert));
    const auto lately = static_cast<double>(lately_used_[static_cast<size_t>(expert)]);
    return (p + (1 - p) * kLaterWorth * lately) * Discount(expert);
  }

  int num_experts() const { return num_experts_; }

 private:
  // Of uses behind the next one by an expert that every token has used. gpt-oss-20b and
  // DeepSeek-V2-Lite agree on it (docs/experiments/latency.md).
  static constexpr double kLaterWorth = 0.06;

  double Discount(ExpertIndex expert) const {
    return discount_[static_cast<size_t>(Distance(expert / num_experts_))];
  }

  SparseLayers layers_;
  int num_experts_;
  int position_ = -1;
  std::vector<float> probability_;  // [layers of the model, num_experts]
  std::vector<float> lately_used_;  // [layers of the model, num_experts]
  std::vector<double> discount_;    // [sparse layers + 1] by distance
};

// Evicts what is least worth keeping. `worth` must outlive it.
std::unique_ptr<EvictionPolicy> MakeNextUsePolicy(const ExpertWorth& worth);

}  // namespace moesaic
