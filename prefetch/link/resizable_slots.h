// ResizableSlots: the slots of a link whose number changes while it works, for who shares memory
// out between the models of a process (serving/multi/expert_balancer.h).
//
// Thread contract: any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic {

struct SlotsInUse {
  uint64_t slot_bytes = 0;
  int64_t held = 0;    // slots whose memory it has
  int64_t usable = 0;  // as SetSlots has it; fewer than held: the rest is on its way back
  int64_t least = 1;   // what it works with: those that stay, and one for the others
  int64_t most = 0;
  // Since the start.
  uint64_t loads = 0;       // experts that have arrived
  uint64_t blocked_us = 0;  // layers waited for experts
};

class ResizableSlots {
 public:
  virtual ~ResizableSlots() = default;

  // Writes into `uses` [layers * experts] how many layers of steps have used each expert since the
  // start (modulo 2^32): whether it was there or not.
  virtual SlotsInUse LookAtSlots(std::vector<uint32_t>& uses) const = 0;
  // There are to be so many, of `least` to `most`. New ones can be used at once; what is too many
  // is given back by the link's thread, soon: what is being read or filled, when that has ended.
  // What is worth most stays.
  virtual void SetSlots(int64_t slots) = 0;
};

}  // namespace moesaic
