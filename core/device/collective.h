// Collective: pieces that each device of a group has computed, brought to those that want all of
// them. Nothing is summed: bytes are moved, so that what comes out does not depend on who took part
// (architecture, rule 1).
//
// Owned by whoever owns the streams; they outlive it. Thread contract: one thread at a time calls,
// and queues nothing else on the streams meanwhile.
#pragma once

#include <memory>
#include <span>

#include "core/device/device_buffer.h"
#include "core/device/stream.h"

namespace moesaic {

class Collective {
 public:
  virtual ~Collective() = default;

  virtual const char* name() const = 0;  // "peer copies", for messages

  // Queues: all pieces, one behind the other, into each of `into`. Device d has pieces[d], which
  // may be empty, and wants all in into[d], which has as many bytes as all pieces together, or is
  // empty: it wants none. Its own piece is often there already, at its place; otherwise the two do
  // not overlap. What is queued on a stream before this has run when its piece is read; what is
  // queued behind it sees all pieces and may overwrite them. Errors are the streams', as ever: a
  // stream is in error behind this when one that it waits for is.
  virtual void Gather(std::span<const DeviceSpan> pieces, std::span<const DeviceSpan> into) = 0;
};

// By copies between devices that can reach each other (Device::CanReach), each on the stream of the
// device that wants it, and events. streams[d] is of device d.
std::unique_ptr<Collective> MakePeerCollective(std::span<Stream* const> streams);

}  // namespace moesaic
