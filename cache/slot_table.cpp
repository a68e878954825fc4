#include "cache/slot_table.h"

#include "core/base/check.h"

namespace moesaic {

uint64_t SlotTable::Bytes(const ExpertGrid& grid) {
  return (static_cast<uint64_t>(grid.total()) + 1) * sizeof(uint64_t);  // the last is progress
}

SlotTable::SlotTable(const ExpertGrid& grid, std::span<std::byte> memory, const std::byte* slots,
                     uint64_t slot_bytes)
    : grid_(grid),
      slots_(slots),
      slot_bytes_(slot_bytes),
      entries_(reinterpret_cast<uint64_t*>(memory.data()), static_cast<size_t>(grid.total())) {
  CHECK_GE(memory.size(), Bytes(grid));
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % sizeof(uint64_t), 0u);
  for (ExpertIndex expert = 0; expert < grid.total(); ++expert) Entry(expert) = 0;
  progress_ = reinterpret_cast<uint32_t*>(memory.data() + entries_.size_bytes());
  *progress_ = 0;
}

void SlotTable::Publish(ExpertIndex expert, int32_t slot) {
  const std::byte* const address = slots_ + static_cast<uint64_t>(slot) * slot_bytes_;
  __atomic_store_n(&Entry(expert), reinterpret_cast<uint64_t>(address), __ATOMIC_RELEASE);
}

bool SlotTable::MayLeave(ExpertIndex expert) const {
  const uint32_t number = Number(grid_.Id(expert).layer);
  return number <= followed_.load(std::memory_order_relaxed) ||
         number > __atomic_load_n(progress_, __ATOMIC_ACQUIRE);
}

bool SlotTable::Retract(ExpertIndex expert) {
  const uint64_t address = __atomic_exchange_n(&Entry(expert), 0, __ATOMIC_RELAXED);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (MayLeave(expert)) return true;
  __atomic_store_n(&Entry(expert), address, __ATOMIC_RELEASE);
  return false;
}

void SlotTable::Follow(int layer) { followed_.store(Number(layer), std::memory_order_relaxed); }

void SlotTable::BeginStep() {
  CHECK_EQ(__atomic_load_n(progress_, __ATOMIC_RELAXED), 0u);
  followed_.store(0, std::memory_order_relaxed);
}

void SlotTable::EndStep() { __atomic_store_n(progress_, 0, __ATOMIC_RELEASE); }

const std::byte* const* SlotTable::row(int layer) const {
  return reinterpret_cast<const std::byte* const*>(entries_.data()) +
         int64_t{layer} * grid_.num_experts();
}

}  // namespace moesaic
