#include "serving/model/choose_experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "kernels/cpu/router_scores.h"

namespace moesaic {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();

// The largest of the values that it is shown, in the order of their numbers: largest first, of
// equal ones the lower number.
class Largest {
 public:
  Largest(int64_t most, int32_t* numbers, float* values)
      : most_(most), numbers_(numbers), values_(values) {}

  void Show(int64_t number, float value) {
    if (std::isnan(value)) value = kLeast;
    if (count_ == most_ && !(value > values_[most_ - 1])) return;
    int64_t at = count_ < most_ ? count_++ : most_ - 1;
    for (; at > 0 && value > values_[at - 1]; --at) {
      values_[at] = values_[at - 1];
      numbers_[at] = numbers_[at - 1];
    }
    values_[at] = value;
    numbers_[at] = static_cast<int32_t>(number);
  }
  int64_t count() const { return count_; }

 private:
  const int64_t most_;
  int32_t* const numbers_;
  float* const values_;
  int64_t count_ = 0;
};

void Normalise(const RouterSpec& spec, const CpuKernels& kernels, float* weights) {
  if (spec.norm == RouterNorm::kSoftmax) {
    kernels.softmax(weights, spec.top_k, weights);
  } else if (spec.norm != RouterNorm::kNone) {
    float sum = 0.0f;
    for (int64_t slot = 0; slot < spec.top_k; ++slot) sum += weights[slot];
    const auto eps = static_cast<float>(spec.norm_eps);
    if (spec.norm == RouterNorm::kSumPlusEps) sum += eps;
    if (spec.norm == RouterNorm::kSumAtLeastEps) sum = std::max(sum, eps);
    for (int64_t slot = 0; slot < spec.top_k; ++slot) weights[slot] /= sum;
  }
  if (spec.scale == 1.0) return;
  const auto scale = static_cast<float>(spec.scale);
  for (int64_t slot = 0; slot < spec.top_k; ++slot) weights[slot] *= scale;
}

}  // namespace

void ChooseExperts(const RouterSpec& spec, const CpuKernels& kernels, float* logits,
                   const float* correction, int32_t* ids, float* weights) {
  const int64_t experts = spec.experts;
  ScoreLogits(spec.score, kernels, experts, logits);
  const auto choice = [&](int64_t e) {
    return spec.correction_bias ? logits[e] + correction[e] : logits[e];
  };

  Largest chosen(spec.top_k, ids, weights);
  if (spec.groups_kept == spec.num_groups) {
    for (int64_t e = 0; e < experts; ++e) chosen.Show(e, choice(e));
  } else {
    CHECK_LE(spec.num_groups, kMostRouterGroups);
    const int64_t size = experts / spec.num_groups;
    std::array<int32_t, kMostRouterGroups> kept;
    std::array<float, kMostRouterGroups> worths;
    Largest groups(spec.groups_kept, kept.data(), worths.data());
    for (int64_t g = 0; g < spec.num_groups; ++g) {
      const int64_t counted = spec.group_rule == GroupRule::kTopTwoSum && size > 1 ? 2 : 1;
      std::array<int32_t, 2> best;
      std::array<float, 2> values;
      Largest of_group(counted, best.data(), values.data());
      for (int64_t e = g * size; e < (g + 1) * size; ++e) of_group.Show(e, choice(e));
      groups.Show(g, counted == 2 ? values[0] + values[1] : values[0]);
    }
    // In their order, which decides between equal experts.
    std::sort(kept.begin(), kept.begin() + groups.count());
    for (int64_t i = 0; i < groups.count(); ++i) {
      for (int64_t e = kept[static_cast<size_t>(i)] * size, end = e + size; e < end; ++e) {
        chosen.Show(e, choice(e));
      }
    }
  }
  CHECK_EQ(chosen.count(), spec.top_k);
  for (int64_t slot = 0; slot < spec.top_k; ++slot) weights[slot] = logits[ids[slot]];
  Normalise(spec, kernels, weights);
}

}  // namespace moesaic
