#include "cache/expert_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

using State = ExpertCache::State;
constexpr uint64_t kSlotBytes = 4096;

ExpertCache MakeCache(int64_t experts, int64_t slots) {
  return ExpertCache(experts, slots, kSlotBytes, MakeLruPolicy(experts));
}

// Loads an expert that must get a slot; returns who left.
ExpertIndex Load(ExpertCache& cache, ExpertIndex expert, int64_t now = 0,
                 LoadReason reason = LoadReason::kOnDemand) {
  const std::optional<ExpertCache::Reservation> reservation = cache.Reserve(expert, reason, now);
  EXPECT_TRUE(reservation.has_value());
  if (!reservation) return kNoExpert;
  cache.Commit(expert, now);
  return reservation->evicted;
}

void Use(ExpertCache& cache, ExpertIndex expert, int64_t now = 0) {
  ASSERT_TRUE(cache.Pin(expert, now).has_value());
  cache.Unpin(expert);
}

TEST(ExpertGridTest, NumbersExpertsLayerAfterLayer) {
  const ExpertGrid grid(5, 8);
  EXPECT_EQ(grid.total(), 40);
  ExpertId id;
  id.layer = 3;
  id.index = 6;
  EXPECT_EQ(grid.Index(id), 30);
  EXPECT_EQ(grid.Id(30), id);
}

TEST(ExpertCacheTest, LoadHitAndLedger) {
  ExpertCache cache = MakeCache(10, 3);
  EXPECT_EQ(cache.capacity_bytes(), 3 * kSlotBytes);
  EXPECT_FALSE(cache.Pin(4, 0).has_value());
  const auto reservation = cache.Reserve(4, LoadReason::kOnDemand, 0);
  ASSERT_TRUE(reservation.has_value());
  EXPECT_EQ(reservation->evicted, kNoExpert);
  EXPECT_EQ(cache.state(4), State::kLoading);
  EXPECT_FALSE(cache.Pin(4, 0).has_value());  // not readable yet
  EXPECT_EQ(cache.used_bytes(), kSlotBytes);
  cache.Commit(4, 1);
  EXPECT_EQ(cache.Pin(4, 2), reservation->slot);
  EXPECT_EQ(cache.Pin(4, 3), reservation->slot);
  EXPECT_EQ(cache.pins(4), 2);
  EXPECT_EQ(cache.pinned_bytes(), kSlotBytes);  // counted once
  cache.Unpin(4);
  EXPECT_EQ(cache.pinned(), 1);
  cache.Unpin(4);
  EXPECT_EQ(cache.pinned(), 0);
  EXPECT_EQ(cache.resident(), 1);
  EXPECT_EQ(cache.free_slots(), 2);
}

TEST(ExpertCacheTest, EvictsTheLeastRecentlyUsed) {
  ExpertCache cache = MakeCache(10, 3);
  Load(cache, 0);
  Load(cache, 1);
  Load(cache, 2);
  Use(cache, 0);
  EXPECT_EQ(Load(cache, 3), 1);
  EXPECT_EQ(Load(cache, 4), 2);
  EXPECT_EQ(Load(cache, 5), 0);
  EXPECT_EQ(cache.counters().evicted, 3u);
  EXPECT_EQ(cache.state(1), State::kAbsent);
  EXPECT_EQ(cache.slot(1), ExpertCache::kNoSlot);
}

TEST(ExpertCacheTest, EachPrefetchIsUsedOrNot) {
  ExpertCache cache = MakeCache(10, 1);
  for (uint64_t round = 1; round <= 2; ++round) {
    Load(cache, 0, 0, LoadReason::kPrefetch);
    Use(cache, 0);
    Use(cache, 0);
    Load(cache, 1, 0, LoadReason::kPrefetch);
    Load(cache, 2);
    EXPECT_EQ(cache.counters().prefetched_used, round);
    EXPECT_EQ(cache.counters().prefetched_unused, round);
  }
}

TEST(ExpertCacheTest, PinnedExpertsAreUntouchable) {
  ExpertCache cache = MakeCache(10, 2);
  Load(cache, 0);
  Load(cache, 1);
  ASSERT_TRUE(cache.Pin(0, 0).has_value());
  EXPECT_EQ(Load(cache, 2), 1);  // although 0 is older
  ASSERT_TRUE(cache.Pin(2, 0).has_value());
  EXPECT_FALSE(cache.Reserve(3, LoadReason::kOnDemand, 0).has_value());
  EXPECT_EQ(cache.state(3), State::kAbsent);
  cache.Unpin(0);
  EXPECT_EQ(Load(cache, 3), 0);
}

TEST(ExpertCacheTest, WantedExpertsStayUntilTheyWereHandedOut) {
  ExpertCache cache = MakeCache(10, 2);
  Load(cache, 0);
  Load(cache, 1);
  cache.Want(0);
  EXPECT_EQ(Load(cache, 2), 1);
  cache.Want(2);
  EXPECT_FALSE(cache.Reserve(3, LoadReason::kOnDemand, 0).has_value());
  ASSERT_TRUE(cache.Pin(0, 0).has_value());
  cache.Unwant(0);
  EXPECT_FALSE(cache.Reserve(3, LoadReason::kOnDemand, 0).has_value());
  cache.Unpin(0);
  EXPECT_EQ(Load(cache, 3), 0);
  cache.Unwant(2);
}

TEST(ExpertCacheTest, WantOutlivesAbsence) {
  ExpertCache cache = MakeCache(4, 1);
  cache.Want(2);
  cache.Want(2);
  Load(cache, 2);
  cache.Unwant(2);
  EXPECT_TRUE(cache.wanted(2));
  EXPECT_FALSE(cache.Reserve(3, LoadReason::kOnDemand, 0).has_value());
  cache.Unwant(2);
  EXPECT_EQ(Load(cache, 3), 2);
}

TEST(ExpertCacheTest, LoadingExpertsAreNotVictims) {
  ExpertCache cache = MakeCache(4, 1);
  ASSERT_TRUE(cache.Reserve(0, LoadReason::kPrefetch, 0).has_value());
  EXPECT_FALSE(cache.Reserve(1, LoadReason::kOnDemand, 0).has_value());
  cache.Abandon(0);
  EXPECT_EQ(cache.state(0), State::kAbsent);
  EXPECT_EQ(Load(cache, 1), kNoExpert);
  EXPECT_EQ(cache.counters().abandoned, 1u);
  EXPECT_EQ(cache.counters().inserted, 1u);
}

TEST(ExpertCacheTest, ZeroCapacity) {
  ExpertCache cache = MakeCache(4, 0);
  EXPECT_FALSE(cache.Reserve(0, LoadReason::kOnDemand, 0).has_value());
  EXPECT_EQ(cache.capacity_bytes(), 0u);
  EXPECT_EQ(cache.Drop(0), 0);
}

TEST(ExpertCacheTest, DropForgetsAllButThePinned) {
  ExpertCache cache = MakeCache(10, 4);
  for (ExpertIndex e = 0; e < 4; ++e) Load(cache, e);
  ASSERT_TRUE(cache.Pin(1, 0).has_value());
  EXPECT_EQ(cache.Drop(0), 3);
  EXPECT_EQ(cache.resident(), 1);
  EXPECT_EQ(cache.counters().evicted, 0u);
  cache.Unpin(1);
}

TEST(ExpertCacheTest, CountsPrefetchesUsedAndUnused) {
  ExpertCache cache = MakeCache(10, 2);
  Load(cache, 0, 0, LoadReason::kPrefetch);
  Load(cache, 1, 0, LoadReason::kPrefetch);
  Use(cache, 1);
  Use(cache, 1);  // counted once
  Load(cache, 2);
  Load(cache, 3);
  EXPECT_EQ(cache.counters().prefetched_used, 1u);
  EXPECT_EQ(cache.counters().prefetched_unused, 1u);
}

// A policy whose priorities the test sets, to see the victim search of the base class.
class TablePolicy : public EvictionPolicy {
 public:
  explicit TablePolicy(size_t experts) : priority(experts, 0) {}
  const char* name() const override { return "table"; }
  void OnInsert(ExpertIndex, LoadReason, int64_t) override {}
  void OnAccess(ExpertIndex, int64_t) override {}
  void OnRemove(ExpertIndex expert, int64_t) override { removed.push_back(expert); }
  double KeepPriority(ExpertIndex expert, int64_t now) const override {
    return priority[static_cast<size_t>(expert)] + (expert == 0 ? static_cast<double>(now) : 0);
  }

  std::vector<double> priority;
  std::vector<ExpertIndex> removed;
};

TEST(ExpertCacheTest, PolicyPrioritiesMayChangeAtAnyTime) {
  auto owned = std::make_unique<TablePolicy>(10);
  TablePolicy& policy = *owned;
  ExpertCache cache(10, 3, kSlotBytes, std::move(owned));
  for (ExpertIndex e = 0; e < 3; ++e) Load(cache, e);
  policy.priority = {0, 5, 3, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(Load(cache, 3, /*now=*/100), 2);  // time has lifted expert 0
  policy.priority[3] = 7;
  policy.priority[1] = 200;
  EXPECT_EQ(Load(cache, 4, 100), 3);
  policy.priority[4] = 100;  // a tie with expert 0 at time 100: the lower index leaves
  EXPECT_EQ(Load(cache, 5, 100), 0);
  EXPECT_EQ(policy.removed, (std::vector<ExpertIndex>{2, 3, 0}));
}

ExpertCache MakeResizable(int64_t experts, int64_t slots, int64_t most) {
  return ExpertCache(experts, slots, kSlotBytes, MakeLruPolicy(experts), nullptr, most);
}

// Closes what can be closed now; returns who was moved.
std::vector<ExpertIndex> CloseSlots(ExpertCache& cache) {
  std::vector<ExpertIndex> moved;
  while (const auto closed = cache.CloseSlot(0)) {
    EXPECT_EQ(closed->slot, cache.num_slots());
    if (closed->moved != kNoExpert) {
      moved.push_back(closed->moved);
      EXPECT_EQ(cache.slot(closed->moved), closed->to);
    }
  }
  return moved;
}

TEST(ExpertCacheResizeTest, TheMostValuableStayWhereverTheyAre) {
  ExpertCache cache = MakeResizable(10, 4, 4);
  for (const ExpertIndex expert : {0, 1, 2, 3}) Load(cache, expert);
  Use(cache, 0);  // in slots 0 and 3: the others leave
  Use(cache, 3);
  cache.SetSlots(2);
  EXPECT_TRUE(cache.closing());
  EXPECT_EQ(CloseSlots(cache), (std::vector<ExpertIndex>{3}));
  EXPECT_FALSE(cache.closing());
  EXPECT_EQ(cache.num_slots(), 2);
  EXPECT_EQ(cache.resident(), 2);
  EXPECT_EQ(cache.counters().evicted, 2u);
  EXPECT_EQ(cache.state(0), State::kResident);
  EXPECT_EQ(cache.state(3), State::kResident);
  EXPECT_EQ(cache.capacity_bytes(), 2 * kSlotBytes);
  EXPECT_EQ(Load(cache, 4), 0);
}

TEST(ExpertCacheResizeTest, FreeSlotsCloseWithoutAnEviction) {
  ExpertCache cache = MakeResizable(10, 4, 4);
  Load(cache, 7);
  cache.SetSlots(1);
  EXPECT_TRUE(CloseSlots(cache).empty());
  EXPECT_EQ(cache.num_slots(), 1);
  EXPECT_EQ(cache.state(7), State::kResident);
  EXPECT_EQ(cache.counters().evicted, 0u);
  EXPECT_EQ(cache.free_slots(), 0);
}

TEST(ExpertCacheResizeTest, PinsAndLoadsAreWaitedFor) {
  ExpertCache cache = MakeResizable(10, 2, 2);
  Load(cache, 0);
  ASSERT_TRUE(cache.Reserve(1, LoadReason::kOnDemand, 0).has_value());  // in the last slot
  cache.SetSlots(1);
  EXPECT_FALSE(cache.CloseSlot(0).has_value());  // being filled
  cache.Commit(1, 0);
  ASSERT_EQ(cache.Pin(1, 0), 1);
  EXPECT_FALSE(cache.CloseSlot(0).has_value());  // being read
  EXPECT_EQ(cache.slot(1), 1);
  EXPECT_EQ(cache.num_slots(), 2);
  cache.Unpin(1);
  const auto closed = cache.CloseSlot(0);
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->moved, 1);
  EXPECT_EQ(closed->to, 0);
  EXPECT_EQ(cache.state(0), State::kAbsent);
}

// A slot that is to close takes no expert, though it is the victim's.
TEST(ExpertCacheResizeTest, ASlotThatIsToCloseIsNotFilledAgain) {
  ExpertCache cache = MakeResizable(10, 3, 3);
  for (const ExpertIndex expert : {0, 1, 2}) Load(cache, expert);
  Use(cache, 0);
  Use(cache, 1);  // the last slot's expert is the oldest
  cache.SetSlots(2);
  const auto reservation = cache.Reserve(5, LoadReason::kOnDemand, 0);
  ASSERT_TRUE(reservation.has_value());
  EXPECT_LT(reservation->slot, 2);
  EXPECT_EQ(cache.counters().evicted, 2u);
  EXPECT_EQ(cache.state(2), State::kAbsent);
  EXPECT_EQ(cache.resident(), 1);
  cache.Commit(5, 0);
  EXPECT_TRUE(CloseSlots(cache).empty());
  EXPECT_EQ(cache.num_slots(), 2);
}

TEST(ExpertCacheResizeTest, GrowsAtOnceAndTakesClosingSlotsBack) {
  ExpertCache cache = MakeResizable(10, 2, 6);
  Load(cache, 0);
  Load(cache, 1);
  cache.SetSlots(5);
  EXPECT_EQ(cache.num_slots(), 5);
  EXPECT_EQ(cache.free_slots(), 3);
  for (const ExpertIndex expert : {2, 3, 4}) EXPECT_EQ(Load(cache, expert), kNoExpert);
  ASSERT_TRUE(cache.Pin(4, 0).has_value());
  cache.SetSlots(2);
  EXPECT_FALSE(cache.CloseSlot(0).has_value());
  cache.SetSlots(6);
  EXPECT_FALSE(cache.closing());
  EXPECT_EQ(cache.num_slots(), 6);
  EXPECT_EQ(cache.free_slots(), 1);
  cache.Unpin(4);
  EXPECT_EQ(cache.resident(), 5);
  EXPECT_EQ(cache.counters().evicted, 0u);
}

TEST(ExpertCacheDeathTest, MisuseIsABug) {
  ExpertCache cache = MakeCache(4, 2);
  Load(cache, 0);
  EXPECT_DEATH(cache.Unpin(0), "");
  EXPECT_DEATH(cache.Unwant(0), "");
  EXPECT_DEATH(cache.Commit(0, 0), "");
  EXPECT_DEATH(cache.Abandon(1), "");
  EXPECT_DEATH(cache.Reserve(0, LoadReason::kOnDemand, 0), "");
  EXPECT_DEATH(cache.Pin(4, 0), "");
  EXPECT_DEATH(cache.SetSlots(0), "");
  EXPECT_DEATH(cache.SetSlots(3), "");
}

// The cache as one would write it without caring for speed.
struct ModelCache {
  struct Entry {
    State state = State::kAbsent;
    int pins = 0;
    int wants = 0;
    uint64_t used = 0;
  };
  std::map<ExpertIndex, Entry> entries;
  int64_t slots = 0;
  uint64_t clock = 0;

  int64_t Count(State state) const {
    return std::count_if(entries.begin(), entries.end(),
                         [&](const auto& e) { return e.second.state == state; });
  }
  // Who would leave; kNoExpert: nobody needs to; nullopt: no slot can be had.
  std::optional<ExpertIndex> Victim() const {
    if (Count(State::kLoading) + Count(State::kResident) < slots) return kNoExpert;
    std::optional<ExpertIndex> victim;
    for (const auto& [expert, entry] : entries) {
      if (entry.state != State::kResident || entry.pins > 0 || entry.wants > 0) continue;
      if (!victim || entry.used < entries.at(*victim).used) victim = expert;
    }
    return victim;
  }
};

TEST(ExpertCachePropertyTest, RandomSchedulesAgainstASimpleModel) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int schedule = 0; schedule < 10000; ++schedule) {
    const auto experts = static_cast<ExpertIndex>(1 + random() % 12);
    const auto slots = static_cast<int64_t>(random() % 8);
    ExpertCache cache = MakeCache(experts, slots);
    ModelCache model;
    model.slots = slots;
    for (int step = 0; step < 60; ++step) {
      const auto expert = static_cast<ExpertIndex>(random() % static_cast<uint64_t>(experts));
      ModelCache::Entry& entry = model.entries[expert];
      switch (random() % 8) {
        case 0:
        case 1:
          ASSERT_EQ(cache.Pin(expert, step).has_value(), entry.state == State::kResident);
          if (entry.state == State::kResident) {
            ++entry.pins;
            entry.used = ++model.clock;
          }
          break;
        case 2:
          if (entry.pins > 0) {
            cache.Unpin(expert);
            --entry.pins;
          }
          break;
        case 3:
          cache.Want(expert);
          ++entry.wants;
          break;
        case 4:
          if (entry.wants > 0) {
            cache.Unwant(expert);
            --entry.wants;
          }
          break;
        case 5:
        case 6:
          if (entry.state == State::kAbsent) {
            const std::optional<ExpertIndex> victim = model.Victim();
            const auto reservation = cache.Reserve(expert, LoadReason::kOnDemand, step);
            ASSERT_EQ(reservation.has_value(), victim.has_value());
            if (!victim) break;
            ASSERT_EQ(reservation->evicted, *victim);
            if (*victim != kNoExpert) model.entries[*victim].state = State::kAbsent;
            entry.state = State::kLoading;
          } else if (entry.state == State::kLoading) {
            cache.Commit(expert, step);
            entry.state = State::kResident;
            entry.used = ++model.clock;
          }
          break;
        default:
          if (entry.state == State::kLoading && random() % 2 == 0) {
            cache.Abandon(expert);
            entry.state = State::kAbsent;
          }
      }
      // Invariants: the ledger adds up and no slot has two owners.
      ASSERT_EQ(cache.loading(), model.Count(State::kLoading));
      ASSERT_EQ(cache.resident(), model.Count(State::kResident));
      ASSERT_LE(cache.pinned_bytes(), cache.used_bytes());
      ASSERT_LE(cache.used_bytes(), cache.capacity_bytes());
      std::set<ExpertCache::Slot> owned;
      for (const auto& [e, m] : model.entries) {
        ASSERT_EQ(cache.state(e), m.state);
        ASSERT_EQ(cache.pins(e), m.pins);
        if (m.state == State::kAbsent) continue;
        ASSERT_TRUE(owned.insert(cache.slot(e)).second);
        ASSERT_EQ(cache.slot_experts()[static_cast<size_t>(cache.slot(e))], e);
      }
    }
  }
}

// Random sizes among random loads: what each slot would hold follows the cache, and nobody who is
// read or filled moves.
TEST(ExpertCachePropertyTest, ResizingNeitherMovesWhatIsUsedNorLosesAnExpert) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int schedule = 0; schedule < 2000; ++schedule) {
    const auto experts = static_cast<ExpertIndex>(1 + random() % 12);
    const auto most = static_cast<int64_t>(1 + random() % 8);
    ExpertCache cache = MakeResizable(experts, 1 + static_cast<int64_t>(random() % 8) % most, most);
    std::vector<ExpertIndex> memory(static_cast<size_t>(most), kNoExpert);  // what is in the slots
    std::map<ExpertIndex, int> pins;
    for (int step = 0; step < 80; ++step) {
      const auto expert = static_cast<ExpertIndex>(random() % static_cast<uint64_t>(experts));
      switch (random() % 6) {
        case 0:
          cache.SetSlots(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
          break;
        case 1:
          if (const auto closed = cache.CloseSlot(step)) {
            if (closed->to >= 0) {
              memory[static_cast<size_t>(closed->to)] = memory[static_cast<size_t>(closed->slot)];
              ASSERT_EQ(pins[closed->moved], 0);
            }
            memory[static_cast<size_t>(closed->slot)] = kNoExpert;
          }
          break;
        case 2:
          if (const auto slot = cache.Pin(expert, step)) {
            ASSERT_EQ(memory[static_cast<size_t>(*slot)], expert);
            ++pins[expert];
          }
          break;
        case 3:
          if (pins[expert] > 0) {
            cache.Unpin(expert);
            --pins[expert];
          }
          break;
        default:
          if (cache.state(expert) == State::kLoading) {
            memory[static_cast<size_t>(cache.slot(expert))] = expert;
            cache.Commit(expert, step);
          } else if (cache.state(expert) == State::kAbsent) {
            const auto reservation = cache.Reserve(expert, LoadReason::kOnDemand, step);
            if (reservation) {
              ASSERT_LT(reservation->slot, cache.usable_slots());
            }
          }
      }
      int64_t residents = 0;
      for (ExpertIndex e = 0; e < experts; ++e) {
        if (cache.state(e) != State::kResident) continue;
        ++residents;
        ASSERT_EQ(memory[static_cast<size_t>(cache.slot(e))], e);
        ASSERT_LT(cache.slot(e), cache.num_slots());
      }
      ASSERT_EQ(cache.resident(), residents);
      ASSERT_GE(cache.num_slots(), cache.usable_slots());
      ASSERT_LE(cache.num_slots(), most);
      if (!cache.closing()) {
        ASSERT_EQ(cache.used_bytes() + static_cast<uint64_t>(cache.free_slots()) * kSlotBytes,
                  cache.capacity_bytes());
      }
    }
    for (auto& [expert, count] : pins) {
      for (; count > 0; --count) cache.Unpin(expert);
    }
    for (ExpertIndex e = 0; e < experts; ++e) {
      if (cache.state(e) == State::kLoading) cache.Abandon(e);
    }
    cache.SetSlots(1);
    CloseSlots(cache);
    ASSERT_EQ(cache.num_slots(), 1);
  }
}

// Waves: whatever is resident and pinned by others, a layer of any size gets through as long as one
// slot is not pinned for good, and no wanted expert is ever loaded twice.
TEST(ExpertCachePropertyTest, WavesMakeProgress) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int schedule = 0; schedule < 2000; ++schedule) {
    const auto experts = static_cast<ExpertIndex>(2 + random() % 20);
    const int64_t slots = 1 + static_cast<int64_t>(random() % 6);
    ExpertCache cache = MakeCache(experts, slots);
    for (int layer = 0; layer < 5; ++layer) {
      std::vector<ExpertIndex> needed;
      for (ExpertIndex e = 0; e < experts; ++e) {
        if (random() % 2 == 0) needed.push_back(e);
      }
      std::shuffle(needed.begin(), needed.end(), random);
      std::set<ExpertIndex> waiting(needed.begin(), needed.end());
      std::set<ExpertIndex> loaded;
      std::vector<ExpertIndex> loading;
      for (const ExpertIndex e : needed) cache.Want(e);
      while (!waiting.empty()) {
        for (const ExpertIndex e : needed) {
          if (waiting.count(e) == 0 || cache.state(e) != State::kAbsent) continue;
          if (!cache.Reserve(e, LoadReason::kOnDemand, 0).has_value()) break;
          ASSERT_TRUE(loaded.insert(e).second) << "loaded twice in one layer";
          loading.push_back(e);
        }
        std::shuffle(loading.begin(), loading.end(), random);
        if (!loading.empty()) {
          cache.Commit(loading.back(), 0);
          loading.pop_back();
        }
        size_t handed_out = 0;
        for (const ExpertIndex e : needed) {
          if (waiting.count(e) == 0 || !cache.Pin(e, 0).has_value()) continue;
          cache.Unwant(e);
          waiting.erase(e);
          ++handed_out;
          cache.Unpin(e);
        }
        ASSERT_GT(handed_out, 0u) << "no progress";
      }
      for (const ExpertIndex e : loading) cache.Commit(e, 0);
    }
  }
}

}  // namespace
}  // namespace moesaic
