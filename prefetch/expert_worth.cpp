#include "prefetch/expert_worth.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

class NextUsePolicy final : public EvictionPolicy {
 public:
  NextUsePolicy(const ExpertWorth& worth, std::vector<int32_t> layer_numbers)
      : worth_(worth), layer_numbers_(std::move(layer_numbers)) {}

  const char* name() const override { return "next-use"; }
  void OnInsert(ExpertIndex, LoadReason, int64_t) override {}
  void OnAccess(ExpertIndex, int64_t) override {}
  void OnRemove(ExpertIndex, int64_t) override {}
  double KeepPriority(ExpertIndex expert, int64_t) const override {
    if (layer_numbers_.empty()) return worth_.Worth(expert);
    const int experts = worth_.num_experts();
    return worth_.Worth(layer_numbers_[static_cast<size_t>(expert / experts)] * experts +
                        expert % experts);
  }

 private:
  const ExpertWorth& worth_;
  const std::vector<int32_t> layer_numbers_;
};

}  // namespace

ExpertWorth::ExpertWorth(int num_layers, int num_experts, double keep_per_iteration)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      probability_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_experts), 0.0f),
      discount_(static_cast<size_t>(num_layers) + 1) {
  for (size_t distance = 0; distance < discount_.size(); ++distance) {
    discount_[distance] = std::pow(keep_per_iteration, static_cast<double>(distance) / num_layers);
  }
}

void ExpertWorth::SetLayer(int layer, std::span<const float> probability) {
  CHECK_EQ(probability.size(), static_cast<size_t>(num_experts_));
  std::copy(probability.begin(), probability.end(),
            probability_.begin() + static_cast<ptrdiff_t>(layer) * num_experts_);
}

std::unique_ptr<EvictionPolicy> MakeNextUsePolicy(const ExpertWorth& worth,
                                                  std::vector<int32_t> layer_numbers) {
  return std::make_unique<NextUsePolicy>(worth, std::move(layer_numbers));
}

}  // namespace moesaic
