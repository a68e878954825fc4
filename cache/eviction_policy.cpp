#include "cache/eviction_policy.h"

#include <vector>

#include "core/base/check.h"

namespace moesaic {

ExpertIndex EvictionPolicy::Victim(std::span<const ExpertIndex> slots,
                                   FunctionRef<bool(ExpertIndex)> evictable, int64_t now) const {
  ExpertIndex victim = kNoExpert;
  double lowest = 0;
  for (const ExpertIndex expert : slots) {
    if (expert == kNoExpert || !evictable(expert)) continue;
    const double priority = KeepPriority(expert, now);
    if (victim == kNoExpert || priority < lowest || (priority == lowest && expert < victim)) {
      victim = expert;
      lowest = priority;
    }
  }
  return victim;
}

namespace {

// A list of the residents, the least recent first, threaded through arrays. What is not evictable
// (pinned, wanted by the running layer) is mostly recent, so the walk from the cold end is short.
class LruPolicy : public EvictionPolicy {
 public:
  explicit LruPolicy(int64_t num_experts_total) : links_(static_cast<size_t>(num_experts_total)) {}

  const char* name() const override { return "lru"; }

  void OnInsert(ExpertIndex expert, LoadReason, int64_t) override {
    CHECK(!At(expert).listed);
    PushBack(expert);
  }
  void OnAccess(ExpertIndex expert, int64_t) override {
    Unlink(expert);
    PushBack(expert);
  }
  void OnRemove(ExpertIndex expert, int64_t) override { Unlink(expert); }

  double KeepPriority(ExpertIndex expert, int64_t) const override {
    return static_cast<double>(links_[static_cast<size_t>(expert)].sequence);
  }
  ExpertIndex Victim(std::span<const ExpertIndex>, FunctionRef<bool(ExpertIndex)> evictable,
                     int64_t) const override {
    ExpertIndex expert = first_;
    while (expert != kNoExpert && !evictable(expert)) {
      expert = links_[static_cast<size_t>(expert)].next;
    }
    return expert;
  }

 private:
  struct Link {
    ExpertIndex previous = kNoExpert;
    ExpertIndex next = kNoExpert;
    uint64_t sequence = 0;  // of its last use; no two are equal
    bool listed = false;
  };

  Link& At(ExpertIndex expert) { return links_[static_cast<size_t>(expert)]; }

  void PushBack(ExpertIndex expert) {
    At(expert) = {last_, kNoExpert, ++sequence_, true};
    (last_ == kNoExpert ? first_ : At(last_).next) = expert;
    last_ = expert;
  }
  void Unlink(ExpertIndex expert) {
    Link& link = At(expert);
    CHECK(link.listed);
    (link.previous == kNoExpert ? first_ : At(link.previous).next) = link.next;
    (link.next == kNoExpert ? last_ : At(link.next).previous) = link.previous;
    link.listed = false;
  }

  std::vector<Link> links_;  // [num_experts_total]
  ExpertIndex first_ = kNoExpert;
  ExpertIndex last_ = kNoExpert;
  uint64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> MakeLruPolicy(int64_t num_experts_total) {
  return std::make_unique<LruPolicy>(num_experts_total);
}

}  // namespace moesaic
