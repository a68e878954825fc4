#include "prefetch/eviction_policies.h"

#include <algorithm>

#include "core/base/error.h"

namespace moesaic {

PolicyCounts::PolicyCounts(const ExpertGrid& grid)
    : grid_(grid),
      request_(static_cast<size_t>(grid.total()), 0),
      all_(static_cast<size_t>(grid.total()), 0) {}

void PolicyCounts::BeginRequest() {
  std::fill(request_.begin(), request_.end(), 0u);
  request_steps_ = 0;
}

void PolicyCounts::Observe(std::span<const ExpertIndex> used) {
  if (used.empty()) return;
  const int layer = used.front() / grid_.num_experts();
  if (layer <= layer_ || request_steps_ == 0) ++request_steps_;
  layer_ = layer;
  ++layers_passed_;
  for (const ExpertIndex expert : used) {
    ++request_[static_cast<size_t>(expert)];
    ++all_[static_cast<size_t>(expert)];
  }
}

namespace {

class LfuPolicy final : public EvictionPolicy {
 public:
  explicit LfuPolicy(int64_t num_experts_total) : uses_(static_cast<size_t>(num_experts_total)) {}
  const char* name() const override { return "lfu"; }
  void OnInsert(ExpertIndex expert, LoadReason, int64_t) override { Uses(expert) = {0, ++turn_}; }
  void OnAccess(ExpertIndex expert, int64_t) override {
    Uses(expert) = {Uses(expert).count + 1, ++turn_};
  }
  void OnRemove(ExpertIndex, int64_t) override {}
  // Of equally often used ones the least recent leaves.
  double KeepPriority(ExpertIndex expert, int64_t) const override {
    const Use& use = uses_[static_cast<size_t>(expert)];
    return static_cast<double>(use.count) +
           static_cast<double>(use.turn) / static_cast<double>(turn_ + 1);
  }

 private:
  struct Use {
    uint64_t count = 0;
    uint64_t turn = 0;
  };
  Use& Uses(ExpertIndex expert) { return uses_[static_cast<size_t>(expert)]; }

  std::vector<Use> uses_;
  uint64_t turn_ = 0;
};

class ModelFrequencyPolicy final : public EvictionPolicy {
 public:
  explicit ModelFrequencyPolicy(const PolicyCounts& counts) : counts_(counts) {}
  const char* name() const override { return "model-frequency"; }
  void OnInsert(ExpertIndex, LoadReason, int64_t) override {}
  void OnAccess(ExpertIndex, int64_t) override {}
  void OnRemove(ExpertIndex, int64_t) override {}
  double KeepPriority(ExpertIndex expert, int64_t) const override { return counts_.in_all(expert); }

 private:
  const PolicyCounts& counts_;
};

class RequestEamPolicy final : public EvictionPolicy {
 public:
  explicit RequestEamPolicy(const PolicyCounts& counts)
      : counts_(counts), fetched_at_(static_cast<size_t>(counts.grid().total()), kNotAhead) {}
  const char* name() const override { return "request-eam"; }
  void OnInsert(ExpertIndex expert, LoadReason reason, int64_t) override {
    fetched_at_[static_cast<size_t>(expert)] =
        reason == LoadReason::kPrefetch ? counts_.layers_passed() : kNotAhead;
  }
  void OnAccess(ExpertIndex expert, int64_t) override {
    fetched_at_[static_cast<size_t>(expert)] = kNotAhead;
  }
  void OnRemove(ExpertIndex, int64_t) override {}
  // In [0, 1], or 2 for what was prefetched and not needed yet.
  double KeepPriority(ExpertIndex expert, int64_t) const override {
    const int layers = counts_.grid().num_layers();
    const int layer = expert / counts_.grid().num_experts();
    const int64_t fetched_at = fetched_at_[static_cast<size_t>(expert)];
    if (fetched_at != kNotAhead) {
      const int64_t at = counts_.layers_passed();
      const int to_go = (layer - static_cast<int>((fetched_at - 1) % layers) + layers) % layers;
      if (at - fetched_at < (to_go == 0 ? layers : to_go)) return 2;
    }
    const double share = static_cast<double>(counts_.in_request(expert)) /
                         static_cast<double>(counts_.request_steps() + 1);
    return share * (1 - static_cast<double>(layer) / layers);
  }
  bool keeps_by_worth() const override { return true; }

 private:
  static constexpr int64_t kNotAhead = -1;
  const PolicyCounts& counts_;
  std::vector<int64_t> fetched_at_;  // [experts] layers_passed then
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeCountingPolicy(std::string_view name,
                                                   const PolicyCounts& counts) {
  if (name == "lru") return MakeLruPolicy(counts.grid().total());
  if (name == "lfu") return std::make_unique<LfuPolicy>(counts.grid().total());
  if (name == "model-frequency") return std::make_unique<ModelFrequencyPolicy>(counts);
  if (name == "request-eam") return std::make_unique<RequestEamPolicy>(counts);
  Fail(
      ErrorKind::kInvalidArgument,
      "--policy: '{}' is not known; use next-use, lru, lfu, model-frequency, request-eam or belady",
      name);
}

}  // namespace moesaic
