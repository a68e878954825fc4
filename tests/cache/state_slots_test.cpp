#include "cache/state_slots.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace moesaic {
namespace {

TEST(StateSlotsTest, AModelWithoutStateHasNone) {
  StateSlots slots(0);
  SequenceState state;
  slots.Open(state);
  slots.Advance(state);
  EXPECT_FALSE(slots.any());
  EXPECT_EQ(state.slot, -1);
  EXPECT_FALSE(slots.KeepBefore(state, 1, false));
  slots.Release(state);
}

TEST(StateSlotsTest, ASequenceGoesOnInItsSlot) {
  StateSlots slots(2);
  SequenceState a;
  SequenceState b;
  slots.Open(a);
  slots.Open(b);
  EXPECT_NE(a.slot, b.slot);
  EXPECT_EQ(a.from, -1);
  EXPECT_EQ(slots.free_slots(), 0);
  slots.Advance(a);
  EXPECT_EQ(a.from, a.slot);
  EXPECT_FALSE(slots.KeepBefore(a, 1, false));  // none are kept
  slots.Release(a);
  EXPECT_EQ(a.slot, -1);
  EXPECT_EQ(slots.free_slots(), 1);
}

TEST(StateSlotsTest, WhatAStepLeavesOnTheWayIsFound) {
  StateSlots slots(3, 1);
  SequenceState a;
  slots.Open(a);
  ASSERT_TRUE(slots.Reserve(a, 16));
  EXPECT_NE(a.snapshot, a.slot);
  const int32_t kept = a.snapshot;
  slots.Keep(a, 7);
  slots.Advance(a);
  EXPECT_EQ(a.snapshot, -1);
  slots.Release(a);
  ASSERT_TRUE(slots.Has(7));
  EXPECT_FALSE(slots.Has(8));

  SequenceState b;
  slots.Restore(b, 7);
  slots.Open(b);
  EXPECT_EQ(b.from, kept);
  EXPECT_NE(b.slot, kept);
  // While it is read nothing takes its place.
  SequenceState c;
  slots.Open(c);
  EXPECT_FALSE(slots.Reserve(c, 16));
  slots.Advance(b);
  EXPECT_EQ(b.from, b.slot);
  ASSERT_TRUE(slots.Reserve(c, 16));
  EXPECT_FALSE(slots.Has(7));
  slots.Release(b);
  slots.Release(c);  // without a name
  EXPECT_EQ(slots.free_slots(), 3);
}

// Two sequences of one step: the room that the first one was promised is not the second one's.
TEST(StateSlotsTest, ReservedRoomIsTaken) {
  StateSlots slots(4, 1);
  SequenceState a;
  SequenceState b;
  slots.Open(a);
  slots.Open(b);
  ASSERT_TRUE(slots.Reserve(a, 16));
  EXPECT_FALSE(slots.Reserve(b, 16));
  slots.Keep(a, 7);
  EXPECT_TRUE(slots.Reserve(b, 16));  // in the place of the state that was kept
  EXPECT_FALSE(slots.Has(7));
}

TEST(StateSlotsTest, AStateIsKeptWithoutACopy) {
  StateSlots slots(4, 2);
  SequenceState a;
  slots.Open(a);
  EXPECT_FALSE(slots.KeepBefore(a, 5, true));  // it has not begun
  slots.Advance(a);
  const int32_t first = a.slot;
  ASSERT_TRUE(slots.KeepBefore(a, 5, true));
  EXPECT_EQ(a.from, first);
  EXPECT_NE(a.slot, first);
  slots.Advance(a);
  ASSERT_TRUE(slots.KeepBefore(a, 6, true));
  EXPECT_FALSE(slots.Has(5));  // its successor took its place
  EXPECT_TRUE(slots.Has(6));
  slots.Advance(a);
  ASSERT_TRUE(slots.KeepBefore(a, 9, false));
  EXPECT_TRUE(slots.Has(6));
  slots.Release(a);
  EXPECT_EQ(slots.snapshots(), 2);
  EXPECT_EQ(slots.free_slots(), 2);
}

TEST(StateSlotsTest, TheOneThatWasUsedLeastRecentlyGoes) {
  StateSlots slots(3, 2);
  SequenceState a;
  slots.Open(a);
  for (const PrefixId prefix : {1, 2}) {
    ASSERT_TRUE(slots.Reserve(a, 1));
    slots.Keep(a, prefix);
    slots.Advance(a);
  }
  slots.Release(a);
  slots.Restore(a, 1);
  slots.Open(a);
  slots.Advance(a);
  ASSERT_TRUE(slots.Reserve(a, 1));
  slots.Keep(a, 3);
  EXPECT_TRUE(slots.Has(1));
  EXPECT_FALSE(slots.Has(2));
  // The same prefix twice is one snapshot.
  slots.Advance(a);
  ASSERT_TRUE(slots.Reserve(a, 1));
  slots.Keep(a, 3);
  EXPECT_EQ(slots.snapshots(), 1);
  slots.Release(a);
  EXPECT_EQ(slots.free_slots(), 2);
}

// Whatever happens, no slot is two things, and sequences always get theirs.
TEST(StateSlotsTest, SlotsAreNeverSharedOrLost) {
  constexpr int64_t kSequences = 3;
  constexpr int64_t kSnapshots = 2;
  StateSlots slots(kSequences + kSnapshots, kSnapshots);
  std::mt19937_64 random(20260101);
  const auto below = [&](uint64_t n) { return random() % n; };
  std::vector<SequenceState> states(kSequences);
  for (int i = 0; i < 20000; ++i) {
    const size_t at = below(states.size());
    SequenceState& state = states[at];
    if (state.slot < 0) {
      const PrefixId prefix = 1 + below(6);
      if (below(2) == 0 && slots.Has(prefix)) slots.Restore(state, prefix);
      slots.Open(state);
      ASSERT_GE(state.slot, 0);
    } else if (below(8) == 0) {
      slots.Release(state);
    } else {
      const PrefixId prefix = 1 + below(6);
      if (below(3) == 0) {
        slots.KeepBefore(state, prefix, below(2) == 0);
      } else if (below(2) == 0 && slots.Reserve(state, 1) && below(2) == 0) {
        slots.Keep(state, prefix);
      }
      if (below(4) != 0) {
        slots.Advance(state);
      } else if (state.snapshot >= 0) {
        slots.Release(state);  // preempted before its step
      }
    }
    std::set<int32_t> used;
    int64_t held = 0;
    for (const SequenceState& other : states) {
      if (other.slot >= 0) ++held, used.insert(other.slot);
      if (other.snapshot >= 0) ++held, used.insert(other.snapshot);
    }
    ASSERT_EQ(static_cast<int64_t>(used.size()), held);
    ASSERT_EQ(slots.free_slots() + held + slots.snapshots(), kSequences + kSnapshots);
    for (const SequenceState& other : states) {
      if (other.source == kEmptyPrefix) continue;
      ASSERT_TRUE(slots.Has(other.source));
      ASSERT_FALSE(used.contains(other.from));
    }
  }
  for (SequenceState& state : states) slots.Release(state);
  EXPECT_EQ(slots.free_slots() + slots.snapshots(), kSequences + kSnapshots);
}

}  // namespace
}  // namespace moesaic
