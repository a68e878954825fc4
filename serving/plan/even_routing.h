// EvenRouting: the routing hook of a profiled pass: spreads rows evenly over a given number of
// experts, so that a pass does what it is to measure, or counts what the router chose.
//
// Thread contract: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "serving/model/model.h"

namespace moesaic {

// Sends each row to `active` experts in turn, or only counts what the router chose.
class EvenRouting : public RoutingHook {
 public:
  explicit EvenRouting(int64_t num_experts) : num_experts_(num_experts) {}

  void Spread(int64_t active) { active_ = active; }
  void Observe() {
    active_ = 0;
    counts_.clear();
    touched_ = 0;
    pairs_ = 0;
  }
  void OnRouting(int64_t layer, const ForwardBatch&, std::span<int32_t> experts,
                 std::span<float>) override {
    if (active_ > 0) {
      for (size_t i = 0; i < experts.size(); ++i) {
        experts[i] = static_cast<int32_t>(static_cast<int64_t>(i) % active_);
      }
      return;
    }
    std::vector<int64_t>& counts = LayerCounts(layer);
    std::vector<uint8_t> used(static_cast<size_t>(num_experts_), 0);
    for (const int32_t expert : experts) {
      ++counts[static_cast<size_t>(expert)];
      used[static_cast<size_t>(expert)] = 1;
    }
    touched_ += std::accumulate(used.begin(), used.end(), int64_t{0});
    pairs_ += static_cast<int64_t>(experts.size());
  }

  double touched() const { return static_cast<double>(touched_); }
  double pairs() const { return static_cast<double>(pairs_); }

  // Shares of the choices of a layer, most first, averaged over the layers.
  std::vector<double> Popularity() const {
    std::vector<double> shares(static_cast<size_t>(num_experts_), 0);
    for (std::vector<int64_t> counts : counts_) {
      std::sort(counts.begin(), counts.end(), std::greater<>());
      const double all =
          static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
      if (all <= 0) continue;
      for (size_t e = 0; e < counts.size(); ++e) shares[e] += static_cast<double>(counts[e]) / all;
    }
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    if (sum <= 0) return {};
    for (double& share : shares) share /= sum;
    return shares;
  }

 private:
  std::vector<int64_t>& LayerCounts(int64_t layer) {
    const auto at = static_cast<size_t>(layer);
    if (counts_.size() <= at) counts_.resize(at + 1);
    if (counts_[at].empty()) counts_[at].resize(static_cast<size_t>(num_experts_), 0);
    return counts_[at];
  }

  const int64_t num_experts_;
  int64_t active_ = 0;
  std::vector<std::vector<int64_t>> counts_;
  int64_t touched_ = 0;
  int64_t pairs_ = 0;
};

}  // namespace moesaic
