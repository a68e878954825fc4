#include "cache/state_slots.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

StateSlots::StateSlots(int64_t num_slots, int64_t most_snapshots)
    : num_slots_(num_slots), most_snapshots_(most_snapshots) {
  CHECK_LE(most_snapshots, num_slots);
  for (int64_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

int32_t StateSlots::TakeFree() {
  CHECK(!free_.empty());
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

const StateSlots::Snapshot* StateSlots::Find(PrefixId prefix) const {
  const auto found =
      std::find_if(snapshots_.begin(), snapshots_.end(),
                   [&](const Snapshot& snapshot) { return snapshot.prefix == prefix; });
  return found != snapshots_.end() ? &*found : nullptr;
}

void StateSlots::Open(SequenceState& state) {
  if (any() && state.slot < 0) state.slot = TakeFree();
}

void StateSlots::Restore(SequenceState& state, PrefixId prefix) {
  CHECK(state.from < 0 && state.source == kEmptyPrefix);
  Snapshot* const snapshot = Find(prefix);
  CHECK(snapshot != nullptr);
  snapshot->used = ++clock_;
  ++snapshot->readers;
  state.from = snapshot->slot;
  state.source = prefix;
}

// Room for one more, for which the least recently used that nobody reads goes.
bool StateSlots::MakeRoom() {
  if (snapshots() + reserved_ < most_snapshots_) return true;
  const Snapshot* oldest = nullptr;
  for (const Snapshot& snapshot : snapshots_) {
    if (snapshot.readers > 0) continue;
    if (oldest == nullptr || snapshot.used < oldest->used) oldest = &snapshot;
  }
  if (oldest == nullptr) return false;
  Drop(oldest->prefix);
  return true;
}

void StateSlots::Drop(PrefixId prefix) {
  const Snapshot* const snapshot = Find(prefix);
  if (snapshot == nullptr || snapshot->readers > 0) return;
  free_.push_back(snapshot->slot);
  snapshots_.erase(snapshots_.begin() + (snapshot - snapshots_.data()));
}

bool StateSlots::Reserve(SequenceState& state, int64_t tokens) {
  CHECK(state.snapshot < 0 && tokens > 0);
  if (!keeps_snapshots() || !MakeRoom()) return false;
  state.snapshot = TakeFree();
  state.snapshot_tokens = tokens;
  ++reserved_;
  return true;
}

void StateSlots::Keep(SequenceState& state, PrefixId prefix) {
  CHECK_GE(state.snapshot, 0);
  CHECK(prefix != kEmptyPrefix);
  --reserved_;
  const int32_t slot = std::exchange(state.snapshot, -1);
  if (Snapshot* const other = Find(prefix)) {  // another sequence was first
    other->used = ++clock_;
    free_.push_back(slot);
    return;
  }
  snapshots_.push_back({.prefix = prefix, .slot = slot, .used = ++clock_});
}

bool StateSlots::KeepBefore(SequenceState& state, PrefixId prefix, bool rolling) {
  CHECK(prefix != kEmptyPrefix);
  if (!keeps_snapshots() || state.from != state.slot || state.slot < 0) return false;
  if (Snapshot* const other = Find(prefix)) {
    other->used = ++clock_;
    return false;
  }
  if (rolling) Drop(std::exchange(state.rolling, kEmptyPrefix));
  if (!MakeRoom()) return false;
  snapshots_.push_back({.prefix = prefix, .slot = state.slot, .used = ++clock_, .readers = 1});
  state.source = prefix;
  if (rolling) state.rolling = prefix;
  state.slot = TakeFree();
  return true;
}

void StateSlots::StopReading(SequenceState& state) {
  if (Snapshot* const snapshot = Find(std::exchange(state.source, kEmptyPrefix))) {
    CHECK_GT(snapshot->readers, 0);
    --snapshot->readers;
  }
}

void StateSlots::AwaitFill(SequenceState& state) {
  CHECK(state.slot >= 0 && state.snapshot < 0);
  StopReading(state);
  state.from = -1;
}

void StateSlots::Filled(SequenceState& state) {
  CHECK(state.slot >= 0 && state.from < 0);
  state.from = state.slot;
}

void StateSlots::Advance(SequenceState& state) {
  if (!any()) return;
  StopReading(state);
  if (state.snapshot >= 0) {  // that nobody named
    free_.push_back(std::exchange(state.snapshot, -1));
    --reserved_;
  }
  state.from = state.slot;
}

void StateSlots::Release(SequenceState& state) {
  StopReading(state);
  if (state.slot >= 0) free_.push_back(state.slot);
  if (state.snapshot >= 0) {
    free_.push_back(state.snapshot);
    --reserved_;
  }
  state = {};
}

}  // namespace moesaic
