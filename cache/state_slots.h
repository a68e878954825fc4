// StateSlots: which slots of recurrent state are whose. A model with recurrent layers has a state
// of one size for each sequence, whatever its length; a slot holds that of all its layers.
//
// Bookkeeping only; thread contract: none of its own, the engine's thread owns it.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic {

// What a sequence has of the slots, and what a step does with them.
struct SequenceState {
  int32_t slot = -1;  // where a step leaves the state
  int32_t from = -1;  // where it finds it; -1: the sequence begins
  // The state after the first so many tokens of the step is left there, too; -1: nowhere.
  int32_t snapshot = -1;
  int64_t snapshot_tokens = 0;
};

class StateSlots {
 public:
  // 0: a model without such layers, whose sequences have none.
  explicit StateSlots(int64_t num_slots);

  int64_t num_slots() const { return num_slots_; }
  int64_t used() const { return num_slots_ - static_cast<int64_t>(free_.size()); }

  // A slot for a sequence that begins. One must be free (CHECK): there are as many as sequences
  // run.
  void Open(SequenceState& state);
  // A step has run: the next one goes on from what it left.
  void Advance(SequenceState& state) const { state.from = state.slot; }
  // Gives back what it has.
  void Release(SequenceState& state);

 private:
  const int64_t num_slots_;
  std::vector<int32_t> free_;
};

}  // namespace moesaic
