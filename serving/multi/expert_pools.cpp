#include "serving/multi/expert_pools.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

ExpertPools::ExpertPools(std::vector<Rules> rules, BalancerOptions options)
    : rules_(std::move(rules)), models_(rules_.size()), balancer_(rules_.size(), options) {}

void ExpertPools::Loaded(size_t model, uint64_t bytes, ResizableSlots* slots) {
  Model& m = models_[model];
  m = Model();
  m.held.bytes = bytes;
  balancer_.Forget(model);
  if (rules_[model].pool < 0 || slots == nullptr) return;
  m.slots = slots;
  m.now = slots->LookAtSlots(uses_);
  m.slots_at_load = m.now.usable;
  const uint64_t slot_bytes = m.now.slot_bytes;
  const auto floor =
      static_cast<int64_t>((rules_[model].floor_bytes + slot_bytes - 1) / slot_bytes);
  m.floor_slots = std::max(m.now.least, std::min(floor, m.now.usable));
  const uint64_t expert_bytes = static_cast<uint64_t>(m.now.held) * slot_bytes;
  CHECK_LE(expert_bytes, bytes);
  m.other_bytes = bytes - expert_bytes;
  Count(m);
}

void ExpertPools::Unloaded(size_t model) {
  models_[model] = Model();
  balancer_.Forget(model);
}

bool ExpertPools::any() const {
  return std::any_of(models_.begin(), models_.end(),
                     [](const Model& model) { return model.slots != nullptr; });
}

std::vector<size_t> ExpertPools::MembersOf(int pool) const {
  std::vector<size_t> members;
  for (size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].slots != nullptr && rules_[i].pool == pool) members.push_back(i);
  }
  return members;
}

void ExpertPools::Count(Model& m) {
  const int64_t slots = std::max(m.now.held, m.now.usable);
  m.held.expert_bytes = static_cast<uint64_t>(slots) * m.now.slot_bytes;
  m.held.bytes = m.other_bytes + m.held.expert_bytes;
  m.held.shrunk = m.now.usable <= m.floor_slots && m.floor_slots < m.slots_at_load;
}

void ExpertPools::Look(int64_t now_ns) {
  for (size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    if (m.slots == nullptr) continue;
    m.now = m.slots->LookAtSlots(uses_);
    m.now.least = m.floor_slots;
    balancer_.Observe(i, m.now, uses_, now_ns);
    Count(m);
    m.held.gain = balancer_.Gain(i);
  }
}

int64_t ExpertPools::Move(uint64_t free_bytes) {
  std::set<int> pools;
  for (const Rules& rules : rules_) pools.insert(rules.pool);
  pools.erase(-1);
  int64_t changes = 0;
  // The others first: what they have not handed out is not free for pool 0.
  for (auto pool = pools.rbegin(); pool != pools.rend(); ++pool) {
    const std::vector<size_t> members = MembersOf(*pool);
    if (members.empty()) continue;
    uint64_t free = free_bytes;
    if (*pool != 0) {
      uint64_t all = 0;
      uint64_t taken = 0;
      for (const size_t i : members) {
        const Model& m = models_[i];
        all += static_cast<uint64_t>(m.slots_at_load) * m.now.slot_bytes;
        taken += m.held.expert_bytes;
      }
      free = std::min(free_bytes, all - std::min(all, taken));
      free_bytes -= free;
    }
    for (const ExpertBalancer::Change& change : balancer_.Decide(members, free)) {
      SetSlots(change.model, change.slots);
      ++changes;
    }
    if (*pool == 0) fragment_bytes_ = std::min(free, balancer_.SlabBytes(members, free));
  }
  return changes;
}

void ExpertPools::SetSlots(size_t model, int64_t slots) {
  Model& m = models_[model];
  const int64_t before = m.now.usable;
  uint64_t& moved = slots > before ? m.held.given_bytes : m.held.taken_bytes;
  moved += static_cast<uint64_t>(std::abs(slots - before)) * m.now.slot_bytes;
  m.slots->SetSlots(slots);
  m.now.usable = slots;
  Count(m);
}

bool ExpertPools::Reclaim(uint64_t bytes) {
  struct Surplus {
    size_t model;
    int64_t slots;
    uint64_t bytes;
  };
  std::vector<Surplus> all;
  uint64_t there = 0;
  uint64_t returning = 0;
  for (const size_t i : MembersOf(0)) {
    const Model& m = models_[i];
    const int64_t slots = std::max<int64_t>(0, m.now.usable - m.floor_slots);
    all.push_back({i, slots, static_cast<uint64_t>(slots) * m.now.slot_bytes});
    there += all.back().bytes;
    returning += m.held.expert_bytes - static_cast<uint64_t>(m.now.usable) * m.now.slot_bytes;
  }
  if (there + returning < bytes) return false;
  bytes -= std::min(bytes, returning);
  std::sort(all.begin(), all.end(), [](const Surplus& a, const Surplus& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.model < b.model;
  });
  for (const Surplus& surplus : all) {
    if (bytes == 0) break;
    const uint64_t slot_bytes = models_[surplus.model].now.slot_bytes;
    const auto wanted = static_cast<int64_t>((bytes + slot_bytes - 1) / slot_bytes);
    const int64_t count = std::min(wanted, surplus.slots);
    if (count == 0) continue;
    SetSlots(surplus.model, models_[surplus.model].now.usable - count);
    bytes -= std::min(bytes, static_cast<uint64_t>(count) * slot_bytes);
  }
  return true;
}

}  // namespace moesaic
