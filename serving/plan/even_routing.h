// EvenRouting: the routing hook of a profiled pass: spreads rows evenly over a given number of
// experts, so that a pass does what it is to measure, or counts what the router chose.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "serving/model/model.h"

namespace moesaic {

// Sends each row to the chosen experts in turn, or only counts what the router chose.
class EvenRouting : public RoutingHook {
 public:
  explicit EvenRouting(int64_t num_experts) : num_experts_(num_experts) {}

  // The next pass's rows go to `active` of the first `among` experts, those after the last pass's:
  // weights come from where those of a job come from, not from the caches that the pass before
  // left.
  void Spread(int64_t active, int64_t among) {
    first_ = (first_ + active_) % among;
    active_ = active;
    among_ = among;
  }
  void Observe() {
    active_ = 0;
    touched_ = 0;
    pairs_ = 0;
  }
  void OnRouting(int64_t, const ForwardBatch&, std::span<int32_t> experts,
                 std::span<float>) override {
    if (active_ > 0) {
      for (size_t i = 0; i < experts.size(); ++i) {
        experts[i] = static_cast<int32_t>((first_ + static_cast<int64_t>(i) % active_) % among_);
      }
      return;
    }
    std::vector<uint8_t> used(static_cast<size_t>(num_experts_), 0);
    for (const int32_t expert : experts) used[static_cast<size_t>(expert)] = 1;
    touched_ += std::accumulate(used.begin(), used.end(), int64_t{0});
    pairs_ += static_cast<int64_t>(experts.size());
  }

  double touched() const { return static_cast<double>(touched_); }
  double pairs() const { return static_cast<double>(pairs_); }

 private:
  const int64_t num_experts_;
  int64_t active_ = 0;
  int64_t among_ = 0;
  int64_t first_ = 0;
  int64_t touched_ = 0;
  int64_t pairs_ = 0;
};

}  // namespace moesaic
