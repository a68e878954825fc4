// LinkObserver: is told what a link and who waits for it do, and when; a timeline is drawn from it.
//
// Thread contract: a LinkMover owns it and makes all calls under its lock; those of the first group
// come from the consumer's thread, the others from the link's.
#pragma once

#include <cstdint>

#include "core/base/expert_id.h"

namespace moesaic {

class LinkObserver {
 public:
  // What of the awaited experts has got farthest: one's bytes are there and being packed, one is
  // being read, none is (the link is busy with others).
  enum class WaitCause : uint8_t { kPack, kRead, kQueue };
  enum class LinkState : uint8_t {
    kMoving,   // at least one packet is in flight
    kPacking,  // none is; bytes that have come are being packed
    kIdle,     // nothing to move
  };

  virtual ~LinkObserver() = default;

  // --- the consumer
  virtual void OnBeginLayer(int layer, int64_t now_ns) = 0;
  virtual void OnHandOut(int64_t experts, int64_t now_ns) = 0;  // 0: there are no more
  // What it waited for was there at there_ns, and it went on at end_ns.
  virtual void OnWaited(WaitCause cause, int64_t begin_ns, int64_t there_ns, int64_t end_ns) = 0;
  virtual void OnEndLayer(int64_t now_ns) = 0;
  // After each call of the consumer that changes what can be moved; `work`: the link has something.
  virtual void OnChange(bool work, int64_t free_slots, int64_t now_ns) = 0;

  // --- the link
  virtual void OnPacket(uint64_t bytes) = 0;
  virtual void OnLink(LinkState state, int64_t free_slots, int64_t now_ns) = 0;
  // From an expert's first packet to its last; some may have failed.
  virtual void OnRead(ExpertId id, int64_t begin_ns, int64_t end_ns) = 0;
  virtual void OnPacked(ExpertId id, int64_t begin_ns, int64_t end_ns) = 0;
};

}  // namespace moesaic
