#include "cache/shared_slots.h"

#include <algorithm>
#include <new>

#include "core/base/check.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint64_t),
              "words are read by several processes");

constexpr uint64_t kMemberBits = (uint64_t{1} << kMostSlotMembers) - 1;
constexpr int kSlotShift = kMostSlotMembers;  // above: 1 + the slot; 0: it is in none

struct SlotsHeader {
  uint64_t magic;
  int64_t experts;
  int64_t slots;
  int64_t reserved;
  uint64_t slot_bytes;
};
constexpr uint64_t kSlotsMagic = 0x31746f6c73656f6d;  // "moeslot1"
constexpr uint64_t kSlotsHeaderBytes = 64;
static_assert(sizeof(SlotsHeader) <= kSlotsHeaderBytes);

std::span<Word> WordsIn(std::span<std::byte> memory, const ExpertGrid& grid) {
  return {std::launder(reinterpret_cast<Word*>(memory.data() + kSlotsHeaderBytes)),
          static_cast<size_t>(grid.total())};
}

}  // namespace

uint64_t SharedSlots::Bytes(const ExpertGrid& grid) {
  return kSlotsHeaderBytes + static_cast<uint64_t>(grid.total()) * sizeof(Word);
}

SharedSlots::SharedSlots(const ExpertGrid& grid, std::span<std::byte> memory, int64_t slots,
                         int64_t reserved, uint64_t slot_bytes) {
  CHECK_GE(memory.size(), Bytes(grid));
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % alignof(SlotsHeader), 0u);
  CHECK(0 <= reserved && reserved <= slots);
  new (memory.data()) SlotsHeader{kSlotsMagic, grid.total(), slots, reserved, slot_bytes};
  for (ExpertIndex expert = 0; expert < grid.total(); ++expert) {
    new (memory.data() + kSlotsHeaderBytes + static_cast<size_t>(expert) * sizeof(Word)) Word(0);
  }
  words_ = WordsIn(memory, grid);
}

void SharedSlots::Publish(ExpertIndex expert, int32_t slot) {
  // Behind the bytes of the slot, for who acquires it.
  words_[static_cast<size_t>(expert)].store((static_cast<uint64_t>(slot) + 1) << kSlotShift,
                                            std::memory_order_release);
}

bool SharedSlots::MayLeave(ExpertIndex expert) const {
  return (words_[static_cast<size_t>(expert)].load(std::memory_order_relaxed) & kMemberBits) == 0;
}

bool SharedSlots::Retract(ExpertIndex expert) {
  Word& word = words_[static_cast<size_t>(expert)];
  uint64_t now = word.load(std::memory_order_relaxed);
  // Acquired, so that the slot is not filled before what its last member has read of it.
  return (now & kMemberBits) == 0 &&
         word.compare_exchange_strong(now, 0, std::memory_order_acq_rel, std::memory_order_relaxed);
}

void SharedSlots::MemberGone(int member) {
  CHECK(0 <= member && member < kMostSlotMembers);
  for (Word& word : words_) word.fetch_and(~(uint64_t{1} << member), std::memory_order_acq_rel);
}

SharedSlotsView::SharedSlotsView(const ExpertGrid& grid, std::span<std::byte> memory,
                                 std::span<const std::byte> slots, uint64_t slot_bytes, int member)
    : slots_(slots), slot_bytes_(slot_bytes), bit_(uint64_t{1} << member) {
  CHECK(0 <= member && member < kMostSlotMembers);
  const auto refuse = [](const char* what) {
    Fail(ErrorKind::kCorrupt, "shared experts: {} is not what this program expects", what);
  };
  if (memory.size() < SharedSlots::Bytes(grid)) refuse("the size of their table");
  const auto* const header = std::launder(reinterpret_cast<const SlotsHeader*>(memory.data()));
  if (header->magic != kSlotsMagic) refuse("their table");
  if (header->experts != grid.total()) refuse("the number of experts");
  if (header->slot_bytes != slot_bytes) refuse("the size of a slot");
  num_slots_ = header->slots;
  reserved_ = header->reserved;
  if (num_slots_ < 0 || reserved_ < 0 ||
      static_cast<uint64_t>(num_slots_) > slots.size() / slot_bytes) {
    refuse("the number of slots");
  }
  words_ = WordsIn(memory, grid);
}

// Null where nobody is to read it.
const std::byte* SharedSlotsView::SlotOf(uint64_t word) const {
  const int64_t slot = static_cast<int64_t>(word >> kSlotShift) - 1;
  if (slot < reserved_ || slot >= num_slots_) return nullptr;
  return slots_.data() + static_cast<uint64_t>(slot) * slot_bytes_;
}

const std::byte* SharedSlotsView::Pin(ExpertIndex expert) {
  Word& word = words_[static_cast<size_t>(expert)];
  uint64_t now = word.load(std::memory_order_relaxed);
  for (;;) {
    const std::byte* const slot = SlotOf(now);
    if (slot == nullptr) return nullptr;
    CHECK_EQ(now & bit_, 0u);
    if (word.compare_exchange_weak(now, now | bit_, std::memory_order_acquire,
                                   std::memory_order_relaxed)) {
      return slot;
    }
  }
}

void SharedSlotsView::Unpin(ExpertIndex expert) {
  const uint64_t before =
      words_[static_cast<size_t>(expert)].fetch_and(~bit_, std::memory_order_release);
  CHECK_NE(before & bit_, 0u);
}

bool SharedSlotsView::Has(ExpertIndex expert) const {
  return SlotOf(words_[static_cast<size_t>(expert)].load(std::memory_order_relaxed)) != nullptr;
}

int64_t SharedSlotsView::resident() const {
  return std::count_if(words_.begin(), words_.end(), [this](const Word& word) {
    return SlotOf(word.load(std::memory_order_relaxed)) != nullptr;
  });
}

}  // namespace moesaic
