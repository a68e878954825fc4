#include "cache/state_slots.h"

#include "core/base/check.h"

namespace moesaic {

StateSlots::StateSlots(int64_t num_slots) : num_slots_(num_slots) {
  for (int64_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(static_cast<int32_t>(slot));
}

void StateSlots::Open(SequenceState& state) {
  if (num_slots_ == 0) return;
  CHECK_LT(state.slot, 0);
  CHECK(!free_.empty());
  state = {.slot = free_.back()};
  free_.pop_back();
}

void StateSlots::Release(SequenceState& state) {
  if (state.slot >= 0) free_.push_back(state.slot);
  state = {};
}

}  // namespace moesaic
