#include "serving/plan/routing_curve.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

// That none of `drawn` of `all` rows is one of `marked`. Beyond all rows each was drawn.
double NoneOf(int64_t marked, int64_t all, int64_t drawn) {
  if (marked == 0) return 1;
  if (drawn > all - marked) return 0;
  const auto log_factorial = [](int64_t n) { return std::lgamma(static_cast<double>(n) + 1); };
  return std::exp(log_factorial(all - marked) - log_factorial(all - marked - drawn) -
                  log_factorial(all) + log_factorial(all - drawn));
}

// Experts that `more` rows use besides those that the counted ones did.
double Unseen(std::span<const int64_t> rows_of, int64_t rows, int64_t more) {
  const auto once = static_cast<double>(std::count(rows_of.begin(), rows_of.end(), 1));
  const auto twice = static_cast<double>(std::count(rows_of.begin(), rows_of.end(), 2));
  const auto absent = static_cast<double>(std::count(rows_of.begin(), rows_of.end(), 0));
  const auto all = static_cast<double>(rows);
  // Chao2, with the form for no expert that was chosen twice.
  double unseen = (all - 1) / all * (twice > 0 ? once * once / (2 * twice) : once * (once - 1) / 2);
  unseen = std::min(unseen, absent);
  if (unseen <= 0 || once <= 0) return 0;
  return unseen * (1 - std::pow(1 - once / (all * unseen + once), static_cast<double>(more)));
}

}  // namespace

RoutingCurve::Counts& RoutingCurve::CountsOf(int64_t layer, bool decode) {
  const auto at = static_cast<size_t>(layer);
  if (!decode && prompts_.size() <= at) prompts_.resize(at + 1);
  Counts& counts = decode ? decode_.emplace_back() : prompts_[at];
  counts.rows_of.resize(static_cast<size_t>(num_experts_), 0);
  return counts;
}

void RoutingCurve::OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                             std::span<float> /*weights*/) {
  const size_t top_k = experts.size() / batch.tokens.size();
  for (const bool decode : {true, false}) {
    Counts* counts = nullptr;
    for (const SequenceSlice& slice : batch.slices) {
      if (slice.prefill == decode) continue;
      if (counts == nullptr) counts = &CountsOf(layer, decode);
      const int64_t end = slice.first_row + slice.num_tokens;
      for (int64_t row = slice.first_row + slice.num_tokens / 2; row < end; ++row) {
        ++counts->rows;
        for (const int32_t expert : experts.subspan(static_cast<size_t>(row) * top_k, top_k)) {
          ++counts->rows_of[static_cast<size_t>(expert)];
        }
      }
    }
  }
}

void RoutingCurve::AddPoint(std::span<const Counts* const> all, int64_t drawn,
                            std::vector<RoutedRows>& points) const {
  RoutedRows point;
  point.rows = static_cast<double>(drawn);
  if (!points.empty() && points.back().rows >= point.rows) return;
  for (const Counts* counts : all) {
    double experts = 0;
    double once = 0;
    double twice = 0;
    for (const int64_t marked : counts->rows_of) {
      experts += 1 - NoneOf(marked, counts->rows, drawn);
      // Of other rows than those that were counted: with putting back.
      const double share = static_cast<double>(marked) / static_cast<double>(counts->rows);
      const double used = 1 - std::pow(1 - share, static_cast<double>(drawn));
      once += used;
      twice += used * used;
    }
    if (drawn > counts->rows)
      experts += Unseen(counts->rows_of, counts->rows, drawn - counts->rows);
    point.experts += experts / static_cast<double>(all.size());
    point.repeated += experts * twice / once / static_cast<double>(all.size());
  }
  if (!points.empty()) {
    point.experts = std::max(point.experts, points.back().experts);
    point.repeated = std::max(point.repeated, points.back().repeated);
  }
  points.push_back(point);
}

std::vector<RoutedRows> RoutingCurve::Points() const {
  std::vector<RoutedRows> points;
  for (const std::vector<Counts>* source : {&decode_, &prompts_}) {
    std::vector<const Counts*> all;
    int64_t rows = 0;
    for (const Counts& counts : *source) {
      if (counts.rows == 0) continue;  // no experts, or not run
      all.push_back(&counts);
      rows = std::max(rows, counts.rows);
    }
    // A prompt's rows lie side by side; they say nothing of other prompts.
    const int64_t most = source == &decode_ ? 2 * rows : rows;
    for (int step = 0; rows > 0; ++step) {
      const int64_t drawn = std::min<int64_t>(most, std::llround(std::pow(2.0, step / 2.0)));
      AddPoint(all, drawn, points);
      // Rarefaction ends and extrapolation begins with all rows.
      const int64_t next = std::llround(std::pow(2.0, (step + 1) / 2.0));
      if (drawn < rows && next > rows) AddPoint(all, rows, points);
      if (drawn == most) break;
    }
  }
  return points;
}

}  // namespace moesaic
