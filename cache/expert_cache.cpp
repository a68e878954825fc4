#include "cache/expert_cache.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

ExpertCache::ExpertCache(int64_t num_experts_total, int64_t num_slots, uint64_t slot_bytes,
                         std::unique_ptr<EvictionPolicy> policy, SlotReaders* readers,
                         int64_t most_slots)
    : slot_bytes_(slot_bytes),
      policy_(std::move(policy)),
      readers_(readers),
      entries_(static_cast<size_t>(num_experts_total)),
      slot_experts_(static_cast<size_t>(std::max(num_slots, most_slots)), kNoExpert),
      num_slots_(num_slots),
      usable_slots_(num_slots) {
  CHECK(policy_ != nullptr);
  CHECK_LT(slot_experts_.size(), size_t{1} << 31);
  // The lowest slot is on top: a cache that never fills touches the least memory.
  free_slots_.reserve(slot_experts_.size());
  for (int64_t slot = num_slots - 1; slot >= 0; --slot) {
    free_slots_.push_back(static_cast<Slot>(slot));
  }
}

ExpertCache::Entry& ExpertCache::At(ExpertIndex expert) {
  CHECK_GE(expert, 0);
  CHECK_LT(static_cast<size_t>(expert), entries_.size());
  return entries_[static_cast<size_t>(expert)];
}

std::optional<ExpertCache::Slot> ExpertCache::Pin(ExpertIndex expert, int64_t now) {
  Entry& entry = At(expert);
  if (entry.state != State::kResident) return std::nullopt;
  if (entry.pins++ == 0) ++pinned_;
  if (!entry.accessed) {
    entry.accessed = true;
    if (entry.reason == LoadReason::kPrefetch) ++counters_.prefetched_used;
  }
  policy_->OnAccess(expert, now);
  return entry.slot;
}

void ExpertCache::Unpin(ExpertIndex expert) {
  Entry& entry = At(expert);
  CHECK_GT(entry.pins, 0);
  if (--entry.pins == 0) --pinned_;
}

void ExpertCache::Want(ExpertIndex expert) { ++At(expert).wants; }

void ExpertCache::Unwant(ExpertIndex expert) {
  Entry& entry = At(expert);
  CHECK_GT(entry.wants, 0);
  --entry.wants;
}

std::optional<ExpertCache::Reservation> ExpertCache::Reserve(ExpertIndex expert, LoadReason reason,
                                                             int64_t now) {
  Entry& entry = At(expert);
  CHECK(entry.state == State::kAbsent);
  Reservation reservation;
  // More than one where slots are to close: theirs do not become free.
  while (free_slots_.empty()) {
    if (!EvictOne(now, reservation.evicted)) return std::nullopt;
  }
  reservation.slot = free_slots_.back();
  free_slots_.pop_back();
  slot_experts_[static_cast<size_t>(reservation.slot)] = expert;
  entry.slot = reservation.slot;
  entry.state = State::kLoading;
  entry.reason = reason;
  entry.accessed = false;
  ++loading_;
  return reservation;
}

// The least valuable one; false: there is none that may leave.
bool ExpertCache::EvictOne(int64_t now, ExpertIndex& evicted) {
  const auto evictable = [this](ExpertIndex candidate) { return Evictable(candidate); };
  ExpertIndex victim = kNoExpert;
  do {  // again when somebody was quicker to read it: it is not evictable then
    victim = policy_->Victim(slot_experts(), evictable, now);
    if (victim == kNoExpert) return false;
    CHECK(Unused(victim));
  } while (!TakeOut(victim));
  Remove(victim, now);
  ++counters_.evicted;
  evicted = victim;
  return true;
}

void ExpertCache::Commit(ExpertIndex expert, int64_t now) {
  Entry& entry = At(expert);
  CHECK(entry.state == State::kLoading);
  entry.state = State::kResident;
  --loading_;
  ++resident_;
  ++counters_.inserted;
  policy_->OnInsert(expert, entry.reason, now);
  if (readers_ != nullptr) readers_->Publish(expert, entry.slot);
}

void ExpertCache::Abandon(ExpertIndex expert) {
  Entry& entry = At(expert);
  CHECK(entry.state == State::kLoading);
  --loading_;
  ++counters_.abandoned;
  FreeSlot(entry);
}

bool ExpertCache::Unused(ExpertIndex expert) const {
  const Entry& entry = At(expert);
  return entry.state == State::kResident && entry.pins == 0 && entry.wants == 0;
}

bool ExpertCache::Evictable(ExpertIndex expert) const {
  return Unused(expert) && (readers_ == nullptr || readers_->MayLeave(expert));
}

// Of what others read. False: they were quicker.
bool ExpertCache::TakeOut(ExpertIndex expert) {
  return readers_ == nullptr || readers_->Retract(expert);
}

std::optional<double> ExpertCache::VictimPriority(int64_t now) const {
  if (!free_slots_.empty()) return std::nullopt;
  const auto evictable = [this](ExpertIndex candidate) { return Evictable(candidate); };
  const ExpertIndex victim = policy_->Victim(slot_experts(), evictable, now);
  if (victim == kNoExpert) return std::nullopt;
  return policy_->KeepPriority(victim, now);
}

void ExpertCache::Release(ExpertIndex expert, int64_t now) {
  CHECK(Unused(expert) && TakeOut(expert));
  Remove(expert, now);
}

int64_t ExpertCache::Drop(int64_t now) {
  int64_t dropped = 0;
  for (const ExpertIndex expert : slot_experts()) {
    if (expert == kNoExpert) continue;
    if (!Evictable(expert) || !TakeOut(expert)) continue;
    Remove(expert, now);
    ++dropped;
  }
  return dropped;
}

void ExpertCache::Remove(ExpertIndex expert, int64_t now) {
  Entry& entry = At(expert);
  policy_->OnRemove(expert, now);
  if (entry.reason == LoadReason::kPrefetch && !entry.accessed) ++counters_.prefetched_unused;
  --resident_;
  FreeSlot(entry);
}

void ExpertCache::FreeSlot(Entry& entry) {
  slot_experts_[static_cast<size_t>(entry.slot)] = kNoExpert;
  if (entry.slot < usable_slots_) free_slots_.push_back(entry.slot);
  entry.slot = kNoSlot;
  entry.state = State::kAbsent;
}

// --- the number of slots

void ExpertCache::SetSlots(int64_t num_slots) {
  CHECK(readers_ == nullptr);
  CHECK_GE(num_slots, 1);
  CHECK_LE(num_slots, most_slots());
  if (num_slots <= usable_slots_) {
    usable_slots_ = num_slots;
    DropFreeSlotsFrom(num_slots);
    return;
  }
  for (int64_t slot = num_slots - 1; slot >= usable_slots_; --slot) {
    if (slot_experts_[static_cast<size_t>(slot)] != kNoExpert) continue;  // it was to close
    free_slots_.push_back(static_cast<Slot>(slot));
  }
  usable_slots_ = num_slots;
  num_slots_ = std::max(num_slots_, num_slots);
}

std::optional<ExpertCache::ClosedSlot> ExpertCache::CloseSlot(int64_t now) {
  if (!closing()) return std::nullopt;
  ClosedSlot closed;
  closed.slot = static_cast<Slot>(num_slots_ - 1);
  const ExpertIndex expert = slot_experts_[static_cast<size_t>(closed.slot)];
  if (expert != kNoExpert) {
    Entry& entry = At(expert);
    if (entry.state == State::kLoading || entry.pins > 0) return std::nullopt;
    // Until there is a slot for it, or it has left itself.
    while (free_slots_.empty() && entry.slot == closed.slot) {
      ExpertIndex evicted = kNoExpert;
      if (!EvictOne(now, evicted)) return std::nullopt;
    }
    if (entry.slot == closed.slot) {
      closed.moved = expert;
      closed.to = free_slots_.back();
      free_slots_.pop_back();
      slot_experts_[static_cast<size_t>(closed.to)] = expert;
      slot_experts_[static_cast<size_t>(closed.slot)] = kNoExpert;
      entry.slot = closed.to;
    }
  }
  --num_slots_;
  return closed;
}

void ExpertCache::DropFreeSlotsFrom(int64_t first) {
  std::erase_if(free_slots_, [first](Slot slot) { return slot >= first; });
}

}  // namespace moesaic
