// ExpertWorth: what each expert would be worth in fast memory, on the one scale that prefetching
// and eviction share: the probability of its next use, discounted by how far ahead that is.
//
//   worth(x) = p(x) * keep_per_iteration ^ (layers until the layer of x is reached / layers)
//
// Of two experts that will be used with the same probability the nearer one is worth more, because
// the farther one can still be fetched meanwhile (Belady's rule, in expectation).
//
// Thread contract: none of its own; guarded by whoever owns the cache. No allocation after
// construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/eviction_policy.h"
#include "cache/expert_grid.h"

namespace moesaic {

class ExpertWorth {
 public:
  ExpertWorth(int num_layers, int num_experts, double keep_per_iteration);

  // The probabilities that the layer's experts are used the next time it is reached. [num_experts]
  void SetLayer(int layer, std::span<const float> probability);
  // Distances are counted from this layer on; -1: an iteration begins.
  void SetPosition(int layer) { position_ = layer; }
  int position() const { return position_; }
  // Layers until `layer` is reached, 1 to num_layers.
  int Distance(int layer) const {
    const int ahead = (layer - position_) % num_layers_;
    return ahead > 0 ? ahead : ahead + num_layers_;
  }

  float probability(ExpertIndex expert) const { return probability_[static_cast<size_t>(expert)]; }
  double Worth(ExpertIndex expert) const {
    return static_cast<double>(probability(expert)) *
           discount_[static_cast<size_t>(Distance(expert / num_experts_))];
  }

  int num_layers() const { return num_layers_; }
  int num_experts() const { return num_experts_; }

 private:
  int num_layers_;
  int num_experts_;
  int position_ = -1;
  std::vector<float> probability_;  // [num_layers, num_experts]
  std::vector<double> discount_;    // [num_layers + 1] by distance
};

// Evicts what is worth least. `worth` must outlive it. layer_numbers: what the cache's layers are
// called in `worth`, where it leaves out those without experts; empty: the same.
std::unique_ptr<EvictionPolicy> MakeNextUsePolicy(const ExpertWorth& worth,
                                                  std::vector<int32_t> layer_numbers = {});

}  // namespace moesaic
