// SlotReaders: others who read the slots of a cache without asking it: steps that run on a device
// by themselves (SlotTable), other processes (SharedSlots). The cache tells what is in its slots,
// and takes an expert out before its slot is filled anew, which is refused while somebody may read
// it.
//
// Thread contract: guarded by the cache's lock.
#pragma once

#include <cstdint>

#include "cache/expert_grid.h"

namespace moesaic {

class SlotReaders {
 public:
  virtual ~SlotReaders() = default;

  // The expert's bytes are in the slot.
  virtual void Publish(ExpertIndex expert, int32_t slot) = 0;
  // Whether Retract would be granted now.
  virtual bool MayLeave(ExpertIndex expert) const = 0;
  // Takes the expert out. False: somebody may read it; it stays.
  virtual bool Retract(ExpertIndex expert) = 0;
  // What the layer needs is pinned or wanted by the cache from here on, as is what is needed of
  // later ones.
  virtual void Follow(int /*layer*/) {}
};

}  // namespace moesaic
