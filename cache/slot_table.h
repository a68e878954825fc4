// SlotTable: which slot of a device each expert is in, where a device can look it up while a step
// runs on it by itself: its kernels read the table, in host memory that they reach, and nobody has
// to tell the host. What keeps a slot from being filled anew while it may be read:
//
// The device's progress is a word beside the table. A step writes the number of a layer there
// before it looks up that layer's experts, with a fence between; the cache takes an expert out of
// the table and looks at the progress then, with a fence between. So either the step finds the
// expert gone, or the cache finds that the step may have read it, puts it back and evicts somebody
// else (Dekker's algorithm; both fences are sequentially consistent over host and device). From the
// time that the cache knows what the layer has routed (Follow) its pins and wants say what must
// stay.
//
// Owned by whoever owns the cache (prefetch/link/device_experts). Thread contract: Publish,
// MayLeave, Retract and Follow are guarded by the cache's lock; BeginStep, EndStep and what a
// device does with rows and progress are the step's, and may happen at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cache/expert_grid.h"
#include "cache/slot_readers.h"

namespace moesaic {

class SlotTable final : public SlotReaders {
 public:
  static uint64_t Bytes(const ExpertGrid& grid);

  // `memory`: Bytes(grid), 8-byte aligned. `slots`: address of the device's slots, slot_bytes each.
  SlotTable(const ExpertGrid& grid, std::span<std::byte> memory, const std::byte* slots,
            uint64_t slot_bytes);
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  // --- the cache
  void Publish(ExpertIndex expert, int32_t slot) override;
  bool MayLeave(ExpertIndex expert) const override;
  bool Retract(ExpertIndex expert) override;  // false: a step may have looked it up already
  void Follow(int layer) override;

  // --- a step
  // The next step may begin: it looks up layers in ascending order, or not at all.
  void BeginStep();
  // It has ended: the device reads no slot any more but what is pinned.
  void EndStep();
  // [experts of the layer] address of each one's slot; null: it is in none.
  const std::byte* const* row(int layer) const;
  // Number(layer) of the layer that is looked up, 0 before the first.
  uint32_t* progress() const { return progress_; }
  static uint32_t Number(int layer) { return static_cast<uint32_t>(layer) + 1; }

 private:
  uint64_t& Entry(ExpertIndex expert) const { return entries_[static_cast<size_t>(expert)]; }

  const ExpertGrid grid_;
  const std::byte* const slots_;
  const uint64_t slot_bytes_;
  std::span<uint64_t> entries_;  // [experts] addresses
  uint32_t* progress_ = nullptr;
  std::atomic<uint32_t> followed_{0};  // Number of the last layer that was
};

}  // namespace moesaic
