#include "prefetch/evict/expert_worth.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace moesaic {
namespace {

class NextUsePolicy final : public EvictionPolicy {
 public:
  explicit NextUsePolicy(const ExpertWorth& worth) : worth_(worth) {}

  const char* name() const override { return "next-use"; }
  void OnInsert(ExpertIndex, LoadReason, int64_t) override {}
  void OnAccess(ExpertIndex, int64_t) override {}
  void OnRemove(ExpertIndex, int64_t) override {}
  double KeepPriority(ExpertIndex expert, int64_t) const override {
    return worth_.KeepWorth(expert);
  }
  bool keeps_by_worth() const override { return true; }

 private:
  const ExpertWorth& worth_;
};

}  // namespace

ExpertWorth::ExpertWorth(const SparseLayers& layers, int num_experts, double keep_per_iteration)
    : layers_(layers),
      num_experts_(num_experts),
      probability_(static_cast<size_t>(layers.num_layers()) * static_cast<size_t>(num_experts),
                   0.0f),
      lately_used_(probability_.size(), 0.0f),
      discount_(static_cast<size_t>(layers.count()) + 1) {
  for (size_t distance = 0; distance < discount_.size(); ++distance) {
    discount_[distance] =
        std::pow(keep_per_iteration, static_cast<double>(distance) / layers.count());
  }
}

void ExpertWorth::Update(const StepPredictor& step_predictor) {
  SetPosition(step_predictor.predicted_at());
  const int look_ahead = step_predictor.look_ahead();
  for (int distance = 1; distance <= look_ahead; ++distance) {
    SetLayer(LayerAt(distance), step_predictor.predicted(distance));
  }
  if (position_ < 0) return;
  const int layer = LayerAt(layers_.count());
  SetLayer(layer, step_predictor.predicted(layers_.count()));
  SetLatelyUsed(layer, step_predictor.lately_used());
}

void ExpertWorth::SetLayer(int layer, std::span<const float> probability) {
  CHECK_EQ(probability.size(), static_cast<size_t>(num_experts_));
  std::copy(probability.begin(), probability.end(),
            probability_.begin() + static_cast<ptrdiff_t>(layer) * num_experts_);
}

void ExpertWorth::SetLatelyUsed(int layer, std::span<const float> share) {
  CHECK_EQ(share.size(), static_cast<size_t>(num_experts_));
  std::copy(share.begin(), share.end(),
            lately_used_.begin() + static_cast<ptrdiff_t>(layer) * num_experts_);
}

std::unique_ptr<EvictionPolicy> MakeNextUsePolicy(const ExpertWorth& worth) {
  return std::make_unique<NextUsePolicy>(worth);
}

}  // namespace moesaic
