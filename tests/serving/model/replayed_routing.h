// ReplayedRouting: a pass of one class of numerics with the routing of another's in place of its
// own. Random routers tie often, a near tie falls either way, and from there on logits differ by
// units, which says nothing about the arithmetic. What the pass's own router chooses is compared
// with what it gets, so that a wrong router does not hide behind the replay.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/check.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {

// For the same passes in the same order as the recorded ones, with all rows of a pass in one group.
class ReplayedRouting : public RoutingHook {
 public:
  ReplayedRouting(const RoutingLog& recorded, int64_t top_k)
      : recorded_(recorded),
        top_k_(static_cast<size_t>(top_k)),
        used_(recorded.experts.size(), 0) {}

  void OnRouting(int64_t layer, const ForwardBatch&, std::span<int32_t> experts,
                 std::span<float> weights) override {
    size_t& used = used_.at(static_cast<size_t>(layer));
    const auto of_layer = static_cast<size_t>(layer);
    CHECK_LE(used + experts.size(), recorded_.experts[of_layer].size());
    const auto given = std::span(recorded_.experts[of_layer]).subspan(used, experts.size());
    const auto given_weights = std::span(recorded_.weights[of_layer]).subspan(used, weights.size());
    used += experts.size();
    for (size_t row = 0; row < experts.size(); row += top_k_) {
      Compare(experts.subspan(row, top_k_), weights.subspan(row, top_k_),
              given.subspan(row, top_k_), given_weights.subspan(row, top_k_));
      Compare(given.subspan(row, top_k_), given_weights.subspan(row, top_k_),
              experts.subspan(row, top_k_), weights.subspan(row, top_k_));
    }
    std::copy(given.begin(), given.end(), experts.begin());
    std::copy(given_weights.begin(), given_weights.end(), weights.begin());
  }

  // How far the weight of an expert was from the other class's, in the worst case: of an expert
  // that the other class did not choose, how far it was from the least that it did choose. Large
  // unless every difference is a near tie.
  float largest_difference() const { return largest_difference_; }

  // Whether everything that was recorded has been used.
  bool used_all() const {
    for (size_t layer = 0; layer < used_.size(); ++layer) {
      if (used_[layer] != recorded_.experts[layer].size()) return false;
    }
    return true;
  }

 private:
  void Compare(std::span<const int32_t> a, std::span<const float> a_weights,
               std::span<const int32_t> b, std::span<const float> b_weights) {
    for (size_t i = 0; i < a.size(); ++i) {
      const auto same = std::find(b.begin(), b.end(), a[i]) - b.begin();
      const auto at = std::min(static_cast<size_t>(same), b.size() - 1);  // the last one: the least
      const float difference = std::abs(a_weights[i] - b_weights[at]);
      // NaN is as far as can be, and stays.
      if (!std::isnan(largest_difference_) && !(difference <= largest_difference_)) {
        largest_difference_ = difference;
      }
    }
  }

  const RoutingLog& recorded_;
  const size_t top_k_;
  std::vector<size_t> used_;  // [layers] pairs
  float largest_difference_ = 0;
};

}  // namespace moesaic
