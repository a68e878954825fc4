// The choice of experts as core/config/router_spec.h says it, in double precision, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "core/config/router_spec.h"

namespace moesaic {

struct ExpertChoice {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double gap = 0;  // the least that decided: between choices in their order, or between groups
};

// As router_spec.h says it.
inline ExpertChoice ChoiceInDouble(const RouterSpec& spec, const std::vector<double>& logits,
                                   const std::vector<float>& correction) {
  const auto experts = static_cast<size_t>(spec.experts);
  std::vector<double> scores(experts);
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - max);
  for (size_t e = 0; e < experts; ++e) {
    const double x = logits[e];
    switch (spec.score) {
      case ScoreFunction::kSoftmax:
        scores[e] = std::exp(x - max) / sum;
        break;
      case ScoreFunction::kSigmoid:
        scores[e] = 1 / (1 + std::exp(-x));
        break;
      case ScoreFunction::kSqrtSoftplus:
        scores[e] = std::sqrt(std::log1p(std::exp(x)));
        break;
      case ScoreFunction::kLogit:
        scores[e] = x;
        break;
    }
  }
  std::vector<double> choices = scores;
  for (size_t e = 0; spec.correction_bias && e < experts; ++e) choices[e] += correction[e];

  const size_t size = experts / static_cast<size_t>(spec.num_groups);
  std::vector<double> worths;
  for (size_t first = 0; first < experts; first += size) {
    std::vector<double> group(choices.begin() + static_cast<int64_t>(first),
                              choices.begin() + static_cast<int64_t>(first + size));
    std::sort(group.rbegin(), group.rend());
    const bool two = spec.group_rule == GroupRule::kTopTwoSum && size > 1;
    worths.push_back(two ? group[0] + group[1] : group[0]);
  }
  const auto ordered = [](const std::vector<double>& values) {
    std::vector<int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    return order;
  };
  const std::vector<int32_t> groups = ordered(worths);
  const std::set<int32_t> kept(groups.begin(), groups.begin() + spec.groups_kept);
  const auto worth = [&](int64_t place) {
    return worths[static_cast<size_t>(groups[static_cast<size_t>(place)])];
  };
  ExpertChoice choice;
  choice.gap = spec.groups_kept < spec.num_groups
                   ? worth(spec.groups_kept - 1) - worth(spec.groups_kept)
                   : std::numeric_limits<double>::infinity();
  double last = std::numeric_limits<double>::infinity();
  for (const int32_t e : ordered(choices)) {
    if (kept.count(e / static_cast<int32_t>(size)) == 0) continue;
    choice.gap = std::min(choice.gap, last - choices[static_cast<size_t>(e)]);
    if (static_cast<int64_t>(choice.ids.size()) == spec.top_k) break;
    last = choices[static_cast<size_t>(e)];
    choice.ids.push_back(e);
    choice.weights.push_back(scores[static_cast<size_t>(e)]);
  }

  double divisor = std::accumulate(choice.weights.begin(), choice.weights.end(), 0.0);
  if (spec.norm == RouterNorm::kNone) divisor = 1;
  if (spec.norm == RouterNorm::kSumPlusEps) divisor += spec.norm_eps;
  if (spec.norm == RouterNorm::kSumAtLeastEps) divisor = std::max(divisor, spec.norm_eps);
  if (spec.norm == RouterNorm::kSoftmax) {
    divisor = 0;
    for (double& w : choice.weights) divisor += w = std::exp(w);
  }
  for (double& w : choice.weights) w *= spec.scale / divisor;
  return choice;
}

}  // namespace moesaic
