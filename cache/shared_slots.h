// SharedSlots: which experts are in the slots of a cache whose memory other processes read in place
// (--share-experts), in a small piece of memory that all of them have. One process fills the slots
// (SharedSlots, the SlotReaders of its ExpertCache); the others, its members, pin what they find
// there while they compute with it (SharedSlotsView).
//
// For each expert there is one word: the slot that it is in, and a bit for each member that has it
// pinned. A member pins by setting its bit in a word that names a slot; the cache takes an expert
// out by clearing a word in which no bit is set. Both are one compare-and-swap, so that a slot is
// never filled anew while a member reads it, and neither side waits for the other. A member that is
// killed while it pins leaves its bits, which MemberGone clears. When the process that fills is
// killed, what is in the slots stays there.
//
// The first slots are reserved: members do not pin what is in them. So the cache has slots that it
// can fill whatever its members do, and its layers go on without waiting for them.
//
// Thread contract: SharedSlots as SlotReaders; MemberGone from any thread. A view belongs to one
// thread, but for Has and resident.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/expert_grid.h"
#include "cache/slot_readers.h"

namespace moesaic {

constexpr int kMostSlotMembers = 32;

class SharedSlots final : public SlotReaders {
 public:
  // Of the memory for words.
  static uint64_t Bytes(const ExpertGrid& grid);

  // `memory`: Bytes(grid), zeroed, 64-byte aligned; outlives this.
  SharedSlots(const ExpertGrid& grid, std::span<std::byte> memory, int64_t slots, int64_t reserved,
              uint64_t slot_bytes);
  SharedSlots(const SharedSlots&) = delete;
  SharedSlots& operator=(const SharedSlots&) = delete;

  void Publish(ExpertIndex expert, int32_t slot) override;
  bool MayLeave(ExpertIndex expert) const override;
  bool Retract(ExpertIndex expert) override;

  // The member, a number below kMostSlotMembers, has ended: it reads nothing any more.
  void MemberGone(int member);

 private:
  std::span<std::atomic<uint64_t>> words_;  // [experts]
};

class SharedSlotsView {
 public:
  // `memory` as SharedSlots has it, `slots` the memory of the slots; both outlive this. Throws
  // Error(kCorrupt) when they are not of one SharedSlots with this grid and these slots.
  SharedSlotsView(const ExpertGrid& grid, std::span<std::byte> memory,
                  std::span<const std::byte> slots, uint64_t slot_bytes, int member);

  // The expert's bytes, which stay until Unpin; null where it is not there, or may not be pinned.
  // Not twice.
  const std::byte* Pin(ExpertIndex expert);
  void Unpin(ExpertIndex expert);

  // It could be pinned now.
  bool Has(ExpertIndex expert) const;
  int64_t resident() const;  // experts that could be
  int64_t slots() const { return num_slots_; }

 private:
  const std::byte* SlotOf(uint64_t word) const;

  std::span<std::atomic<uint64_t>> words_;  // [experts]
  const std::span<const std::byte> slots_;
  const uint64_t slot_bytes_;
  const uint64_t bit_;
  int64_t num_slots_ = 0;
  int64_t reserved_ = 0;
};

}  // namespace moesaic
