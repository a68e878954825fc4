#include "serving/multi/expert_pools.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

ExpertPools::ExpertPools(std::vector<Rules> rules, BalancerOptions options,
                         KvBalancerOptions kv_options)
    : rules_(std::move(rules)),
      models_(rules_.size()),
      balancer_(rules_.size(), options),
      kv_balancer_(rules_.size(), kv_options),
      hysteresis_(options.hysteresis) {}

void ExpertPools::Loaded(size_t model, uint64_t bytes, ResizableSlots* slots, ResizableKv* kv) {
  Model& m = models_[model];
  m = Model();
  m.held.bytes = bytes;
  balancer_.Forget(model);
  kv_balancer_.Forget(model);
  if (rules_[model].pool < 0 || slots == nullptr) return;
  m.slots = slots;
  m.now = slots->LookAtSlots(uses_);
  m.slots_at_load = m.now.usable;
  const uint64_t slot_bytes = m.now.slot_bytes;
  const auto floor =
      static_cast<int64_t>((rules_[model].floor_bytes + slot_bytes - 1) / slot_bytes);
  m.floor_slots = std::max(m.now.least, std::min(floor, m.now.usable));
  const uint64_t expert_bytes = static_cast<uint64_t>(m.now.held) * slot_bytes;
  // Those of another pool's memory are nobody's keys and values.
  if (rules_[model].pool == 0 && kv != nullptr) {
    m.kv = kv;
    m.kv_now = kv->LookAtKv();
  }
  const uint64_t kv_bytes = static_cast<uint64_t>(m.kv_now.held) * m.kv_now.block_bytes;
  CHECK_LE(expert_bytes + kv_bytes, bytes);
  m.other_bytes = bytes - expert_bytes - kv_bytes;
  Count(m);
}

void ExpertPools::Unloaded(size_t model) {
  models_[model] = Model();
  balancer_.Forget(model);
  kv_balancer_.Forget(model);
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
  m.held.kv_bytes = static_cast<uint64_t>(m.kv_now.held) * m.kv_now.block_bytes;
  m.held.bytes = m.other_bytes + m.held.expert_bytes + m.held.kv_bytes;
  m.held.shrunk = m.now.usable <= m.floor_slots && m.floor_slots < m.slots_at_load;
}

void ExpertPools::Look(int64_t now_ns) {
  for (size_t i = 0; i < models_.size(); ++i) {
    Model& m = models_[i];
    if (m.slots == nullptr) continue;
    m.now = m.slots->LookAtSlots(uses_);
    m.now.least = m.floor_slots;
    balancer_.Observe(i, m.now, uses_, now_ns);
    if (m.kv != nullptr) {
      m.kv_now = m.kv->LookAtKv();
      kv_balancer_.Observe(i, m.kv_now, now_ns);
    }
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
    if (*pool == 0) changes += MoveKv(free_bytes);
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

// --- keys and values

void ExpertPools::SetKv(size_t model, int64_t slabs) {
  Model& m = models_[model];
  const int64_t before = m.kv_now.usable;
  m.kv_now.usable += slabs * m.kv_now.slab_blocks;
  m.kv_now.held = std::max(m.kv_now.held, m.kv_now.usable);
  uint64_t& moved = slabs > 0 ? m.held.kv_given_bytes : m.held.kv_taken_bytes;
  moved += static_cast<uint64_t>(std::abs(m.kv_now.usable - before)) * m.kv_now.block_bytes;
  m.kv->SetKvBlocks(m.kv_now.usable);
  Count(m);
}

int64_t ExpertPools::UnusedKvSlabs(const Model& m) const {
  if (m.kv == nullptr) return 0;
  const int64_t kept = std::max(m.kv_now.least, m.kv_now.most_used);
  return std::max<int64_t>(0, m.kv_now.usable - kept) / m.kv_now.slab_blocks;
}

// What is not needed goes; then who lacks most gets a slab, if it can be had. What is left for
// experts is in free_bytes: nothing, while a slab is on its way to keys and values.
int64_t ExpertPools::MoveKv(uint64_t& free_bytes) {
  int64_t changes = 0;
  std::optional<size_t> taker;
  bool lacking = false;  // experts
  for (const size_t i : MembersOf(0)) {
    if (models_[i].kv == nullptr) continue;
    if (kv_balancer_.Value(i) > (taker ? kv_balancer_.Value(*taker) : 0)) taker = i;
    lacking |= models_[i].held.gain > 0;
  }
  if (taker || lacking) {
    for (const size_t i : MembersOf(0)) {
      if (models_[i].kv == nullptr || i == taker) continue;
      const int64_t spare = kv_balancer_.SpareSlabs(i);
      if (spare == 0) continue;
      SetKv(i, -spare);
      ++changes;
    }
  }
  if (!taker) return changes;
  const uint64_t slab_bytes = kv_balancer_.SlabBytes(*taker);
  if (free_bytes >= slab_bytes) {
    SetKv(*taker, 1);
    free_bytes -= slab_bytes;
    return changes + 1;
  }
  const uint64_t missing = slab_bytes - free_bytes;
  free_bytes = 0;
  return changes + (TakeFor(*taker, missing) ? 1 : 0);
}

// Has experts of one model give back so much for keys and values of another, or of its own, unless
// enough is on its way already. Whether any is.
bool ExpertPools::TakeFor(size_t taker, uint64_t bytes) {
  const auto slots_for = [&](const Model& m) {
    return static_cast<int64_t>((bytes + m.now.slot_bytes - 1) / m.now.slot_bytes);
  };
  uint64_t returning = 0;
  std::optional<size_t> giver;
  double least = 0;
  for (const size_t i : MembersOf(0)) {
    const Model& m = models_[i];
    returning += m.held.expert_bytes - static_cast<uint64_t>(m.now.usable) * m.now.slot_bytes;
    returning += m.held.kv_bytes - static_cast<uint64_t>(m.kv_now.usable) * m.kv_now.block_bytes;
    const int64_t slots = slots_for(m);
    if (m.now.usable - slots < m.floor_slots) continue;
    // All that run wait for an expert that is missing.
    const double loss =
        balancer_.Loss(i, slots) * static_cast<double>(std::max<int64_t>(1, m.kv_now.running));
    if (giver && loss >= least) continue;
    giver = i;
    least = loss;
  }
  if (returning >= bytes) return false;
  if (!giver || kv_balancer_.Value(taker) <= hysteresis_ * least) return false;
  SetSlots(*giver, models_[*giver].now.usable - slots_for(models_[*giver]));
  return true;
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
    returning += m.held.kv_bytes - static_cast<uint64_t>(m.kv_now.usable) * m.kv_now.block_bytes;
    there += static_cast<uint64_t>(UnusedKvSlabs(m) * m.kv_now.slab_blocks) * m.kv_now.block_bytes;
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
  for (const size_t i : MembersOf(0)) {
    const Model& m = models_[i];
    const int64_t unused = UnusedKvSlabs(m);
    if (bytes == 0 || unused == 0) continue;
    const uint64_t slab_bytes = static_cast<uint64_t>(m.kv_now.slab_blocks) * m.kv_now.block_bytes;
    const auto wanted = static_cast<int64_t>((bytes + slab_bytes - 1) / slab_bytes);
    const int64_t count = std::min(wanted, unused);
    SetKv(i, -count);
    bytes -= std::min(bytes, static_cast<uint64_t>(count) * slab_bytes);
  }
  return true;
}

}  // namespace moesaic
