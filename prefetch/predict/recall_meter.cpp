#include "prefetch/predict/recall_meter.h"

#include <algorithm>
#include <utility>

namespace moesaic {

RecallStats& RecallStats::operator+=(const RecallStats& other) {
  for (size_t i = 0; i < used.size(); ++i) {
    used[i] += other.used[i];
    found[i] += other.found[i];
  }
  return *this;
}

RecallStats& RecallStats::operator-=(const RecallStats& other) {
  for (size_t i = 0; i < used.size(); ++i) {
    used[i] -= other.used[i];
    found[i] -= other.found[i];
  }
  return *this;
}

RecallMeter::RecallMeter(const PredictorShape& shape)
    : shape_(shape),
      predicted_(static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.num_experts)),
      known_(static_cast<size_t>(shape.num_layers), 0),
      used_(static_cast<size_t>(shape.num_experts), 0) {}

void RecallMeter::BeginStep(bool counts) {
  counts_ = counts;
  turn_ = (turn_ + 1) % RecallStats::kDistances;
  std::fill(known_.begin(), known_.end(), uint8_t{0});
}

void RecallMeter::Predicted(int number, const StepPredictor& step_predictor) {
  if (!counts_) return;
  const int ahead = std::min(
      {RecallStats::kDistances, step_predictor.look_ahead(), shape_.num_layers - 1 - number});
  for (int distance = 1; distance <= ahead; ++distance) {
    const int target = number + distance;
    if (DistanceOf(target) != distance) continue;
    const std::span<const float> p = step_predictor.predicted(distance);
    std::copy(p.begin(), p.end(),
              predicted_.begin() + static_cast<ptrdiff_t>(target) * shape_.num_experts);
    known_[static_cast<size_t>(target)] = 1;
  }
}

void RecallMeter::Used(int number, std::span<const int32_t> experts) {
  if (known_[static_cast<size_t>(number)] == 0) return;
  const float* p = &predicted_[static_cast<size_t>(number) * used_.size()];
  int distinct = 0;
  for (const int32_t expert : experts) {
    distinct += 1 - used_[static_cast<size_t>(expert)];
    used_[static_cast<size_t>(expert)] = 1;
  }
  const auto at = static_cast<size_t>(DistanceOf(number) - 1);
  for (const int32_t expert : experts) {
    if (std::exchange(used_[static_cast<size_t>(expert)], uint8_t{0}) == 0) continue;
    int rank = 0;  // ties go to the lower index
    for (int32_t j = 0; j < shape_.num_experts; ++j) {
      rank += p[j] > p[expert] || (p[j] == p[expert] && j < expert) ? 1 : 0;
    }
    ++stats_.used[at];
    if (rank < distinct) ++stats_.found[at];
  }
}

RecallStats RecallMeter::Take() { return std::exchange(stats_, RecallStats{}); }

}  // namespace moesaic
