// StateSlots: which slots of recurrent state are whose. A model with recurrent layers has a state
// of one size for each sequence, whatever its length; a slot holds that of all its layers.
//
// The keys and values of a prefix serve a later sequence only with the state behind it, so some
// states are kept: a snapshot is the state behind a prefix that KvBlockPool knows. There are a few
// of them at most; a new one takes the place of the one that was used least recently.
//
// Nothing is copied: a step reads a state in one slot and leaves it in the same or in another, and
// may leave one on the way in a third.
//
// Bookkeeping only; thread contract: none of its own, the engine's thread owns it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_block_pool.h"

namespace moesaic {

// What a sequence has of the slots, and what a step does with them.
struct SequenceState {
  int32_t slot = -1;  // where a step leaves the state
  int32_t from = -1;  // where it finds it; -1: the sequence begins
  // The state after the first so many tokens of the step is left there, too; -1: nowhere.
  int32_t snapshot = -1;
  int64_t snapshot_tokens = 0;
  PrefixId source = kEmptyPrefix;   // the snapshot that `from` is, which stays while it is read
  PrefixId rolling = kEmptyPrefix;  // see KeepBefore
};

class StateSlots {
 public:
  // 0 slots: a model without such layers, whose sequences have none. Sequences hold at most
  // num_slots - most_snapshots.
  explicit StateSlots(int64_t num_slots, int64_t most_snapshots = 0);

  bool any() const { return num_slots_ > 0; }
  bool keeps_snapshots() const { return most_snapshots_ > 0; }
  int64_t snapshots() const { return static_cast<int64_t>(snapshots_.size()); }
  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }

  // A slot for a sequence, where it has none.
  void Open(SequenceState& state);
  // Whether the state behind this prefix is kept.
  bool Has(PrefixId prefix) const { return Find(prefix) != nullptr; }
  // The sequence, which has begun nowhere else, goes on from there.
  void Restore(SequenceState& state, PrefixId prefix);
  // The next step leaves a state after so many of its tokens, which Keep names. False: there is no
  // room.
  bool Reserve(SequenceState& state, int64_t tokens);
  // The slot where it is; -1: it is not kept.
  int32_t SlotOf(PrefixId prefix) const {
    const Snapshot* const snapshot = Find(prefix);
    return snapshot != nullptr ? snapshot->slot : -1;
  }
  // A state that comes from elsewhere will be put into the sequence's slot, in place of whatever it
  // was to go on from; and it is there.
  void AwaitFill(SequenceState& state);
  void Filled(SequenceState& state);
  // What the step left there is the state behind this prefix.
  void Keep(SequenceState& state, PrefixId prefix);
  // The state that the sequence has before its next step is the one behind this prefix. A rolling
  // one takes the place of the sequence's last one. False: there is no room.
  bool KeepBefore(SequenceState& state, PrefixId prefix, bool rolling);
  // A step has run: the next one goes on from what it left.
  void Advance(SequenceState& state);
  // Gives back what it has.
  void Release(SequenceState& state);

 private:
  struct Snapshot {
    PrefixId prefix = kEmptyPrefix;
    int32_t slot = -1;
    uint64_t used = 0;  // the last time
    int readers = 0;    // sequences whose next step begins with it
  };

  const Snapshot* Find(PrefixId prefix) const;
  Snapshot* Find(PrefixId prefix) {
    return const_cast<Snapshot*>(static_cast<const StateSlots*>(this)->Find(prefix));
  }
  bool MakeRoom();
  void Drop(PrefixId prefix);
  void StopReading(SequenceState& state);
  int32_t TakeFree();

  const int64_t num_slots_;
  const int64_t most_snapshots_;
  std::vector<int32_t> free_;
  std::vector<Snapshot> snapshots_;
  int64_t reserved_ = 0;  // slots of snapshots that have no name yet
  uint64_t clock_ = 0;
};

}  // namespace moesaic
