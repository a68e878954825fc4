// ExpertCache: which experts are in the slots of one fast tier, which slots are pinned or being
// filled, and which expert leaves next. Bookkeeping only: a plain state machine that moves no
// bytes, knows no thread and takes the time as an argument, so that the simulator and the tests
// drive the very object that serves.
//
// Thread contract: none of its own; whoever guards its ExpertFlow guards it. Nothing is
// allocated after construction.
//
// The number of slots may change while it works, up to the most that it was made for: SetSlots says
// how many there are to be. New ones can be used at once. Those that are too many, the last ones,
// take no more experts; each closes (CloseSlot) when nobody reads or fills it. What is in it is
// moved to where the least valuable expert was, so that what stays does not depend on where it is,
// and the slots that are left are the first ones.
//
// An expert is absent, loading (it has a slot that is being filled) or resident. Two marks keep a
// resident from leaving:
//   pin   somebody reads the slot (counted);
//   want  the running layer has not had it yet (counted). It may be set on an absent expert too.
// A layer that needs more experts than there are slots thus never evicts one that it still needs
// to load another: what is wanted and resident is handed out first, and only when it is released
// does its slot serve the rest. There is no deadlock in that: a slot that is neither loading nor
// pinned nor evictable holds a wanted resident, which its layer can take at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/eviction_policy.h"
#include "cache/expert_grid.h"
#include "cache/slot_readers.h"

namespace moesaic {

// Monotone counters.
struct ExpertCacheCounters {
  uint64_t inserted = 0;           // loads that were completed
  uint64_t abandoned = 0;          // loads that were not
  uint64_t evicted = 0;            // residents that made room for another
  uint64_t prefetched_used = 0;    // prefetched experts, when first accessed
  uint64_t prefetched_unused = 0;  // prefetched experts that left before anybody accessed them
};

class ExpertCache {
 public:
  using Slot = int32_t;
  static constexpr Slot kNoSlot = -1;
  enum class State : uint8_t { kAbsent, kLoading, kResident };

  struct Reservation {
    Slot slot = kNoSlot;
    ExpertIndex evicted = kNoExpert;  // who left for it
  };

  // A slot that is no more, and who was moved from it to another; kNoExpert: nobody.
  struct ClosedSlot {
    Slot slot = kNoSlot;
    ExpertIndex moved = kNoExpert;
    Slot to = kNoSlot;
  };

  // num_slots of slot_bytes each, for experts [0, num_experts_total). No slots is allowed: nothing
  // is ever resident then. `readers` (may be null; outlives the cache) know the residents and may
  // keep one from leaving. `most_slots`: as many as there may ever be; 0: their number stays.
  ExpertCache(int64_t num_experts_total, int64_t num_slots, uint64_t slot_bytes,
              std::unique_ptr<EvictionPolicy> policy, SlotReaders* readers = nullptr,
              int64_t most_slots = 0);

  State state(ExpertIndex expert) const { return At(expert).state; }
  Slot slot(ExpertIndex expert) const { return At(expert).slot; }  // kNoSlot when absent
  int32_t pins(ExpertIndex expert) const { return At(expert).pins; }
  bool wanted(ExpertIndex expert) const { return At(expert).wants > 0; }

  // Pins a resident expert and counts an access; nullopt when it is not resident.
  std::optional<Slot> Pin(ExpertIndex expert, int64_t now);
  void Unpin(ExpertIndex expert);
  void Want(ExpertIndex expert);
  void Unwant(ExpertIndex expert);

  // Gives an absent expert a slot to be loaded into: a free one, or that of the evictable resident
  // (unpinned, unwanted) that the policy values least, which leaves. nullopt when there is none.
  std::optional<Reservation> Reserve(ExpertIndex expert, LoadReason reason, int64_t now);
  void Commit(ExpertIndex expert, int64_t now);  // loading -> resident
  void Abandon(ExpertIndex expert);              // loading -> absent, the slot is free
  // What the resident that Reserve would evict is worth; nullopt when a slot is free or none can be
  // had.
  std::optional<double> VictimPriority(int64_t now) const;
  // Makes one evictable resident absent. Not counted as an eviction.
  void Release(ExpertIndex expert, int64_t now);
  // Makes every evictable resident absent; returns how many. Not counted as evictions.
  int64_t Drop(int64_t now);

  // There are to be so many slots, at least one and at most most_slots. More are there at once.
  // Without readers.
  void SetSlots(int64_t num_slots);
  // Closes the last slot, if there are too many and nobody reads or fills it. The least valuable
  // evictable resident leaves where one has to. The caller moves the bytes of who was moved.
  // nullopt: nothing can be done now.
  std::optional<ClosedSlot> CloseSlot(int64_t now);
  bool closing() const { return usable_slots_ < num_slots_; }

  // [num_slots] who is in each slot, loading or resident; kNoExpert where nobody is.
  std::span<const ExpertIndex> slot_experts() const {
    return std::span(slot_experts_).first(static_cast<size_t>(num_slots_));
  }
  int64_t num_slots() const { return num_slots_; }        // those that are to close included
  int64_t usable_slots() const { return usable_slots_; }  // as SetSlots has it
  int64_t most_slots() const { return static_cast<int64_t>(slot_experts_.size()); }
  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  int64_t loading() const { return loading_; }
  int64_t resident() const { return resident_; }
  int64_t pinned() const { return pinned_; }  // experts with at least one pin

  // The ledger. used + free == capacity when nothing is to close, pinned <= used.
  uint64_t capacity_bytes() const { return Bytes(num_slots()); }
  uint64_t used_bytes() const { return Bytes(resident_ + loading_); }
  uint64_t pinned_bytes() const { return Bytes(pinned_); }

  const ExpertCacheCounters& counters() const { return counters_; }
  const EvictionPolicy& policy() const { return *policy_; }

 private:
  struct Entry {
    Slot slot = kNoSlot;
    int32_t pins = 0;
    int32_t wants = 0;
    State state = State::kAbsent;
    LoadReason reason = LoadReason::kOnDemand;
    bool accessed = false;  // since it was inserted
  };

  Entry& At(ExpertIndex expert);
  const Entry& At(ExpertIndex expert) const { return const_cast<ExpertCache*>(this)->At(expert); }
  uint64_t Bytes(int64_t slots) const { return static_cast<uint64_t>(slots) * slot_bytes_; }
  bool Unused(ExpertIndex expert) const;
  bool Evictable(ExpertIndex expert) const;
  bool TakeOut(ExpertIndex expert);
  void Remove(ExpertIndex expert, int64_t now);
  void FreeSlot(Entry& entry);
  bool EvictOne(int64_t now, ExpertIndex& evicted);
  void DropFreeSlotsFrom(int64_t first);

  uint64_t slot_bytes_;
  std::unique_ptr<EvictionPolicy> policy_;
  SlotReaders* const readers_;
  std::vector<Entry> entries_;             // [num_experts_total]
  std::vector<ExpertIndex> slot_experts_;  // [most_slots] kNoExpert from num_slots_ on
  int64_t num_slots_ = 0;
  int64_t usable_slots_ = 0;
  std::vector<Slot> free_slots_;  // a stack; of the usable ones
  int64_t loading_ = 0;
  int64_t resident_ = 0;
  int64_t pinned_ = 0;
  ExpertCacheCounters counters_;
};

}  // namespace moesaic
