#include "cache/slot_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "cache/expert_cache.h"

namespace moesaic {
namespace {

class SlotTableTest : public testing::Test {
 protected:
  static constexpr int kLayers = 3;
  static constexpr int kExperts = 4;
  static constexpr uint64_t kSlotBytes = 64;

  static ExpertIndex Index(int layer, int expert) { return layer * kExperts + expert; }
  const std::byte* Lookup(int layer, int expert) const { return table_.row(layer)[expert]; }
  const std::byte* Slot(int64_t slot) const { return slots_.data() + slot * int64_t{kSlotBytes}; }
  // As a step does it on the device.
  void Reach(int layer) {
    __atomic_store_n(table_.progress(), SlotTable::Number(layer), __ATOMIC_RELAXED);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  ExpertGrid grid_{kLayers, kExperts};
  std::vector<std::byte> slots_{8 * kSlotBytes};
  std::vector<uint64_t> memory_ = std::vector<uint64_t>(SlotTable::Bytes(grid_) / 8);
  SlotTable table_{grid_, std::as_writable_bytes(std::span(memory_)), slots_.data(), kSlotBytes};
};

TEST_F(SlotTableTest, HasTheAddressesOfResidents) {
  ExpertCache cache(grid_.total(), 2, kSlotBytes, MakeLruPolicy(grid_.total()), &table_);
  const auto load = [&](ExpertIndex expert) {
    const auto reservation = cache.Reserve(expert, LoadReason::kOnDemand, 0);
    ASSERT_TRUE(reservation.has_value());
    EXPECT_EQ(Lookup(expert / kExperts, expert % kExperts), nullptr);  // not before it is there
    cache.Commit(expert, 0);
  };
  load(Index(0, 1));
  load(Index(2, 3));
  EXPECT_EQ(Lookup(0, 1), Slot(cache.slot(Index(0, 1))));
  EXPECT_EQ(Lookup(2, 3), Slot(cache.slot(Index(2, 3))));
  EXPECT_EQ(Lookup(0, 0), nullptr);
  load(Index(1, 0));  // in the place of the first
  EXPECT_EQ(Lookup(0, 1), nullptr);
  EXPECT_EQ(Lookup(1, 0), Slot(cache.slot(Index(1, 0))));
  cache.Drop(0);
  EXPECT_EQ(Lookup(1, 0), nullptr);
  EXPECT_EQ(Lookup(2, 3), nullptr);
}

// What a step may have looked up and the cache does not know of yet keeps its slot.
TEST_F(SlotTableTest, WhatAStepMayReadStays) {
  for (const int layer : {0, 1, 2}) table_.Publish(Index(layer, 0), layer);
  table_.BeginStep();
  EXPECT_TRUE(table_.MayLeave(Index(2, 0)));
  Reach(1);
  EXPECT_FALSE(table_.MayLeave(Index(0, 0)));
  EXPECT_FALSE(table_.Retract(Index(1, 0)));
  EXPECT_EQ(Lookup(1, 0), Slot(1));          // back
  EXPECT_TRUE(table_.Retract(Index(2, 0)));  // not reached: the step finds it gone
  EXPECT_EQ(Lookup(2, 0), nullptr);
  table_.Follow(0);
  EXPECT_TRUE(table_.Retract(Index(0, 0)));
  EXPECT_FALSE(table_.Retract(Index(1, 0)));
  table_.EndStep();
  EXPECT_TRUE(table_.Retract(Index(1, 0)));
  table_.BeginStep();
}

TEST_F(SlotTableTest, ACacheTakesNoSlotThatAStepMayRead) {
  ExpertCache cache(grid_.total(), 2, kSlotBytes, MakeLruPolicy(grid_.total()), &table_);
  const auto load = [&](ExpertIndex expert, int64_t now) {
    const auto reservation = cache.Reserve(expert, LoadReason::kPrefetch, now);
    if (reservation) cache.Commit(expert, now);
    return reservation ? reservation->evicted : kNoExpert;
  };
  load(Index(0, 0), 1);
  load(Index(2, 0), 2);
  table_.BeginStep();
  Reach(0);
  EXPECT_EQ(load(Index(1, 0), 3), Index(2, 0));  // the first is older, but may be in use
  Reach(1);
  EXPECT_FALSE(cache.VictimPriority(4).has_value());
  EXPECT_FALSE(cache.Reserve(Index(2, 1), LoadReason::kPrefetch, 4).has_value());
  EXPECT_EQ(cache.Drop(4), 0);
  EXPECT_EQ(cache.counters().evicted, 1u);
  table_.EndStep();
  EXPECT_EQ(load(Index(2, 1), 5), Index(0, 0));
}

// A step that looks up against a cache that evicts: whatever the step has found stays what it was
// until the cache has followed it.
TEST_F(SlotTableTest, EitherTheStepFindsItGoneOrTheCacheFindsItInUse) {
  constexpr int kSteps = 3000;
  // Who is in the only slot; written without a lock, as a copy is.
  uint32_t in_slot = 0;
  uint32_t step_now = 0;
  uint32_t done = 0;
  int64_t found = 0;
  int64_t torn = 0;
  std::thread step([&] {
    for (uint32_t i = 1; i <= kSteps; ++i) {
      while (__atomic_load_n(&step_now, __ATOMIC_ACQUIRE) != i) std::this_thread::yield();
      Reach(1);
      const uint64_t entry =
          __atomic_load_n(reinterpret_cast<const uint64_t*>(table_.row(1)), __ATOMIC_ACQUIRE);
      if (entry != 0) {
        ++found;
        for (int look = 0; look < 20; ++look) {
          torn += __atomic_load_n(&in_slot, __ATOMIC_RELAXED) != 1 ? 1 : 0;
        }
      }
      __atomic_store_n(&done, i, __ATOMIC_RELEASE);
    }
  });
  int64_t evicted = 0;
  for (uint32_t i = 1; i <= kSteps; ++i) {
    __atomic_store_n(&in_slot, 1, __ATOMIC_RELAXED);
    table_.Publish(Index(1, 0), 0);
    table_.BeginStep();
    __atomic_store_n(&step_now, i, __ATOMIC_RELEASE);
    for (uint32_t wait = 0; wait < i % 97; ++wait)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    if (table_.Retract(Index(1, 0))) {
      __atomic_store_n(&in_slot, 2, __ATOMIC_RELAXED);
      ++evicted;
    }
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) != i) std::this_thread::yield();
    table_.EndStep();
  }
  step.join();
  EXPECT_EQ(torn, 0);
  EXPECT_LE(found + evicted, kSteps);  // never both; neither, where it was put back too late
}

}  // namespace
}  // namespace moesaic
