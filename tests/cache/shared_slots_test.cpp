#include "cache/shared_slots.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cache/expert_cache.h"
#include "core/base/aligned_buffer.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

class SharedSlotsTest : public testing::Test {
 protected:
  static constexpr int kLayers = 2;
  static constexpr int kExperts = 6;
  static constexpr uint64_t kSlotBytes = 64;
  static constexpr int64_t kSlots = 4;
  static constexpr int64_t kReserved = 1;

  SharedSlotsTest() {
    table_memory_.Zero();
    slots_.Zero();
    table_.emplace(grid_, table_memory_.span(), kSlots, kReserved, kSlotBytes);
    cache_ = std::make_unique<ExpertCache>(grid_.total(), kSlots, kSlotBytes,
                                           MakeLruPolicy(grid_.total()), &*table_);
  }

  SharedSlotsView View(int member) {
    return {grid_, table_memory_.span(), slots_.span(), kSlotBytes, member};
  }
  // kNoSlot: every slot is in use.
  ExpertCache::Slot Load(ExpertIndex expert) {
    const auto reservation = cache_->Reserve(expert, LoadReason::kOnDemand, ++now_);
    if (!reservation) return ExpertCache::kNoSlot;
    cache_->Commit(expert, now_);
    return reservation->slot;
  }
  const std::byte* Slot(int64_t slot) const { return slots_.data() + slot * int64_t{kSlotBytes}; }

  ExpertGrid grid_{kLayers, kExperts};
  AlignedBuffer table_memory_{SharedSlots::Bytes(grid_)};
  AlignedBuffer slots_{kSlots * kSlotBytes};
  std::optional<SharedSlots> table_;
  std::unique_ptr<ExpertCache> cache_;
  int64_t now_ = 0;
};

TEST_F(SharedSlotsTest, MembersPinWhatIsThereAndNotReserved) {
  SharedSlotsView view = View(3);
  EXPECT_EQ(view.slots(), kSlots);
  EXPECT_EQ(view.Pin(0), nullptr);
  EXPECT_EQ(Load(0), 0);  // the reserved slot
  EXPECT_EQ(Load(7), 1);
  EXPECT_EQ(view.Pin(0), nullptr);
  EXPECT_FALSE(view.Has(0));
  EXPECT_TRUE(view.Has(7));
  EXPECT_EQ(view.resident(), 1);
  EXPECT_EQ(view.Pin(7), Slot(1));
  EXPECT_TRUE(view.Has(7));
  view.Unpin(7);
  EXPECT_EQ(cache_->Drop(++now_), 2);
  EXPECT_EQ(view.Pin(7), nullptr);
  EXPECT_EQ(view.resident(), 0);
}

// The cache fills what is left, however long members hold on to the rest.
TEST_F(SharedSlotsTest, WhatIsPinnedStaysAndTheCacheGoesOn) {
  SharedSlotsView first = View(0);
  SharedSlotsView second = View(31);
  for (ExpertIndex expert = 0; expert < kSlots; ++expert) Load(expert);
  EXPECT_EQ(first.Pin(1), Slot(1));
  EXPECT_EQ(first.Pin(2), Slot(2));
  EXPECT_EQ(second.Pin(2), Slot(2));
  EXPECT_EQ(second.Pin(3), Slot(3));
  EXPECT_FALSE(table_->MayLeave(2));
  for (ExpertIndex expert = 4; expert < 8; ++expert) EXPECT_EQ(Load(expert), 0) << expert;
  first.Unpin(2);
  EXPECT_EQ(Load(8), 0);  // the other one has it still
  second.Unpin(2);
  EXPECT_EQ(Load(9), 2);  // now the least recently used
  EXPECT_EQ(first.Pin(2), nullptr);
  EXPECT_EQ(cache_->Drop(++now_), 2);
  EXPECT_TRUE(first.Has(1));
}

TEST_F(SharedSlotsTest, AMemberThatHasEndedPinsNothing) {
  SharedSlotsView ended = View(0);
  SharedSlotsView other = View(1);
  for (ExpertIndex expert = 0; expert < kSlots; ++expert) Load(expert);
  ASSERT_NE(ended.Pin(1), nullptr);
  ASSERT_NE(ended.Pin(2), nullptr);
  ASSERT_NE(other.Pin(2), nullptr);
  table_->MemberGone(0);
  EXPECT_TRUE(table_->MayLeave(1));
  EXPECT_FALSE(table_->MayLeave(2));
  SharedSlotsView next = View(0);  // who gets its number
  EXPECT_NE(next.Pin(1), nullptr);
}

TEST_F(SharedSlotsTest, AnotherTableIsRefused) {
  const ExpertGrid more(kLayers + 1, kExperts);
  EXPECT_THROW(SharedSlotsView(more, table_memory_.span(), slots_.span(), kSlotBytes, 0), Error);
  const ExpertGrid fewer(kLayers - 1, kExperts);
  EXPECT_THROW(SharedSlotsView(fewer, table_memory_.span(), slots_.span(), kSlotBytes, 0), Error);
  EXPECT_THROW(SharedSlotsView(grid_, table_memory_.span(), slots_.span(), 128, 0), Error);
  EXPECT_THROW(SharedSlotsView(grid_, table_memory_.span(), slots_.span().first(3 * kSlotBytes),
                               kSlotBytes, 0),
               Error);
  table_memory_.Zero();
  EXPECT_THROW(View(0), Error);
}

// A cache that loads and evicts as fast as it can, against members that pin: whoever pins an
// expert finds its bytes until it unpins, and the cache is never without a slot.
TEST_F(SharedSlotsTest, NoSlotIsFilledWhileAMemberReadsIt) {
  constexpr int kLoads = 20000;
  std::atomic<bool> done{false};
  std::atomic<int64_t> pinned{0};
  std::atomic<int64_t> torn{0};
  const auto member = [&](int number) {
    SharedSlotsView view = View(number);
    uint32_t random = static_cast<uint32_t>(number) + 1;
    while (!done.load(std::memory_order_acquire)) {
      random = random * 1664525u + 1013904223u;
      const auto expert = static_cast<ExpertIndex>((random >> 8) % grid_.total());
      const std::byte* const slot = view.Pin(expert);
      if (slot == nullptr) {
        std::this_thread::yield();
        continue;
      }
      ++pinned;
      for (uint64_t b = 0; b < kSlotBytes; ++b) {
        if (slot[b] != static_cast<std::byte>(expert)) ++torn;
      }
      view.Unpin(expert);
    }
  };
  std::thread first(member, 0);
  std::thread second(member, 1);
  int64_t refused = 0;
  for (int i = 0; i < kLoads || pinned.load() < 100; ++i) {
    const auto expert = static_cast<ExpertIndex>(i * 5 % grid_.total());
    if (cache_->state(expert) != ExpertCache::State::kAbsent) continue;
    const auto reservation = cache_->Reserve(expert, LoadReason::kOnDemand, ++now_);
    if (!reservation) {
      ++refused;
      continue;
    }
    std::memset(slots_.data() + static_cast<uint64_t>(reservation->slot) * kSlotBytes, expert,
                kSlotBytes);
    cache_->Commit(expert, now_);
  }
  done.store(true, std::memory_order_release);
  first.join();
  second.join();
  EXPECT_EQ(torn.load(), 0);
  EXPECT_EQ(refused, 0);
}

}  // namespace
}  // namespace moesaic
