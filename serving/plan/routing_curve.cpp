#include "serving/plan/routing_curve.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

// That none of `drawn` of `all` rows is one of `marked`.
double NoneOf(int64_t marked, int64_t all, int64_t drawn) {
  if (drawn > all - marked) return 0;
  const auto log_factorial = [](int64_t n) { return std::lgamma(static_cast<double>(n) + 1); };
  return std::exp(log_factorial(all - marked) - log_factorial(all - marked - drawn) -
                  log_factorial(all) + log_factorial(all - drawn));
}

}  // namespace

void RoutingCurve::OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                             std::span<float> /*weights*/) {
  const auto at = static_cast<size_t>(layer);
  const size_t top_k = experts.size() / batch.tokens.size();
  for (const SequenceSlice& slice : batch.slices) {
    std::vector<LayerCounts>& layers = slice.prefill ? prompts_ : decode_;
    if (layers.size() <= at) layers.resize(at + 1);
    LayerCounts& counts = layers[at];
    counts.rows_of.resize(static_cast<size_t>(num_experts_), 0);
    const int64_t end = slice.first_row + slice.num_tokens;
    for (int64_t row = slice.first_row + slice.num_tokens / 2; row < end; ++row) {
      ++counts.rows;
      for (const int32_t expert : experts.subspan(static_cast<size_t>(row) * top_k, top_k)) {
        ++counts.rows_of[static_cast<size_t>(expert)];
      }
    }
  }
}

std::vector<RoutedRows> RoutingCurve::Points() const {
  std::vector<RoutedRows> points;
  for (const std::vector<LayerCounts>* layers : {&decode_, &prompts_}) {
    int64_t rows = 0;
    for (const LayerCounts& layer : *layers) rows = std::max(rows, layer.rows);
    for (int step = 0; rows > 0; ++step) {
      const int64_t drawn = std::min<int64_t>(rows, std::llround(std::pow(2.0, step / 2.0)));
      double experts = 0;
      int64_t sparse = 0;
      for (const LayerCounts& layer : *layers) {
        if (layer.rows == 0) continue;  // no experts, or not run
        ++sparse;
        for (const int64_t marked : layer.rows_of) experts += 1 - NoneOf(marked, layer.rows, drawn);
      }
      RoutedRows point = {static_cast<double>(drawn), experts / static_cast<double>(sparse)};
      if (points.empty() || point.rows > points.back().rows) {
        if (!points.empty()) point.experts = std::max(point.experts, points.back().experts);
        points.push_back(point);
      }
      if (drawn == rows) break;
    }
  }
  return points;
}

}  // namespace moesaic
