#include "prefetch/evict/eviction_policies.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/named.h"
#include "tracer/state_fields.h"

namespace moesaic {

PolicyCounts::PolicyCounts(const ExpertGrid& grid)
    : grid_(grid),
      running_(static_cast<size_t>(grid.total())),
      all_(static_cast<size_t>(grid.total())) {}

void PolicyCounts::BeginRequest(int request) {
  const auto at = static_cast<size_t>(request);
  if (at >= requests_.size()) requests_.resize(at + 1);
  requests_[at].used.assign(static_cast<size_t>(grid_.total()), 0);
  requests_[at].tokens = 0;
}

void PolicyCounts::BeginIteration(int request, int64_t tokens) {
  requests_[static_cast<size_t>(request)].tokens += static_cast<uint64_t>(tokens);
  Add(running_tokens_, static_cast<uint64_t>(tokens));
}

void PolicyCounts::BeginLayer(int layer) {
  const int layers = grid_.num_layers();
  const int passed = (layer - layer_ + layers - 1) % layers + 1;  // the same one: all of them
  Add(layers_passed_, static_cast<int64_t>(passed));
  layer_ = layer;
}

void PolicyCounts::Observe(int request, std::span<const int32_t> experts) {
  std::vector<uint32_t>& used = requests_[static_cast<size_t>(request)].used;
  for (const int32_t expert : experts) {
    const auto index = static_cast<size_t>(layer_ * grid_.num_experts() + expert);
    ++used[index];
    Add(running_[index], uint32_t{1});
    Add(all_[index], uint64_t{1});
  }
}

void PolicyCounts::EndRequest(int request) {
  Request& ended = requests_[static_cast<size_t>(request)];
  for (size_t i = 0; i < ended.used.size(); ++i) {
    if (ended.used[i] > 0) Add(running_[i], 0u - ended.used[i]);
  }
  Add(running_tokens_, uint64_t{0} - ended.tokens);
}

std::vector<std::byte> PolicyCounts::Section::Save() const {
  std::vector<uint64_t> uses;
  for (const std::atomic<uint64_t>& count : counts_.all_) {
    uses.push_back(count.load(std::memory_order_relaxed));
  }
  StateFields fields;
  fields.SetArray<uint64_t>("uses", uses);  // [layers, experts]
  return fields.Pack();
}

void PolicyCounts::Section::Load(uint32_t stored_version, std::span<const std::byte> bytes) {
  if (stored_version != version()) {
    Fail(ErrorKind::kUnsupported, "has version {}, this program reads {}", stored_version,
         version());
  }
  const StateFields fields = StateFields::Unpack(bytes, std::string(name()));
  const auto uses = fields.ArrayOf<uint64_t>("uses", counts_.all_.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    counts_.all_[i].store(uses[i], std::memory_order_relaxed);
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
  double KeepPriority(ExpertIndex expert, int64_t) const override {
    return static_cast<double>(counts_.in_all(expert));
  }

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
    const double share = static_cast<double>(counts_.in_running(expert)) /
                         static_cast<double>(counts_.running_tokens() + 1);
    return share * (1 - static_cast<double>(layer) / layers);
  }
  bool keeps_by_worth() const override { return true; }

 private:
  static constexpr int64_t kNotAhead = -1;
  const PolicyCounts& counts_;
  std::vector<int64_t> fetched_at_;  // [experts] layers_passed then
};

using MakeFunction = std::unique_ptr<EvictionPolicy> (*)(const PolicyCounts& counts);

template <typename Policy>
std::unique_ptr<EvictionPolicy> MakePolicyOf(const PolicyCounts& counts) {
  return std::make_unique<Policy>(counts);
}

constexpr Named<MakeFunction> kPolicies[] = {
    {"lru", [](const PolicyCounts& counts) { return MakeLruPolicy(counts.grid().total()); }},
    {"lfu",
     [](const PolicyCounts& counts) -> std::unique_ptr<EvictionPolicy> {
       return std::make_unique<LfuPolicy>(counts.grid().total());
     }},
    {"model-frequency", MakePolicyOf<ModelFrequencyPolicy>},
    {"request-eam", MakePolicyOf<RequestEamPolicy>},
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeCountingPolicy(std::string_view name,
                                                   const PolicyCounts& counts) {
  const auto* policy = FindNamed(kPolicies, name);
  if (policy != nullptr) return policy->value(counts);
  Fail(ErrorKind::kInvalidArgument, "--policy: '{}' is not known; use {}", name,
       OneOfText(SimulatedPolicyNames()));
}

std::vector<std::string> CountingPolicyNames() { return NamesOf(kPolicies); }

std::vector<std::string> SimulatedPolicyNames() {
  std::vector<std::string> names = CountingPolicyNames();
  names.insert(names.begin(), "next-use");
  names.emplace_back("belady");
  return names;
}

}  // namespace moesaic
