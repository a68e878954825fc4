#include "serving/simulate/future_uses.h"

#include <limits>

namespace moesaic {
namespace {

class BeladyPolicy final : public EvictionPolicy {
 public:
  explicit BeladyPolicy(const FutureUses& future) : future_(future) {}
  const char* name() const override { return "belady"; }
  void OnInsert(ExpertIndex, LoadReason, int64_t) override {}
  void OnAccess(ExpertIndex, int64_t) override {}
  void OnRemove(ExpertIndex, int64_t) override {}
  double KeepPriority(ExpertIndex expert, int64_t) const override {
    return -static_cast<double>(future_.NextUse(expert));
  }

 private:
  const FutureUses& future_;
};

}  // namespace

FutureUses::FutureUses(const RoutingTrace& trace, std::span<const int> order) {
  const int layers = trace.header.num_layers;
  const int experts = trace.header.num_experts;
  uses_.resize(static_cast<size_t>(layers) * static_cast<size_t>(experts));
  next_.assign(uses_.size(), 0);
  int64_t when = 0;
  for (const int index : order) {
    const TraceSequence& sequence = trace.sequences[static_cast<size_t>(index)];
    for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
      for (int layer = 0; layer < layers; ++layer) {
        ++when;
        for (const uint16_t expert : trace.Experts(sequence, token, layer)) {
          uses_[static_cast<size_t>(layer * experts + expert)].push_back(when);
        }
      }
    }
  }
}

int64_t FutureUses::NextUse(ExpertIndex expert) const {
  const auto at = static_cast<size_t>(expert);
  while (next_[at] < uses_[at].size() && uses_[at][next_[at]] <= passed_) ++next_[at];
  return next_[at] < uses_[at].size() ? uses_[at][next_[at]] : std::numeric_limits<int32_t>::max();
}

std::unique_ptr<EvictionPolicy> MakeBeladyPolicy(const FutureUses& future) {
  return std::make_unique<BeladyPolicy>(future);
}

}  // namespace moesaic
