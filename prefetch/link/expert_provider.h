// ExpertProvider: hands the forward pass the experts of a layer, as addresses of their blobs, as
// soon as each can be computed. Two kinds: LinkMover (one link: disk -> host memory, or host memory
// -> a device) and DeviceExperts (several links, or the host in place).
//
// Thread contract: one consumer thread (the engine's) calls everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/expert_id.h"
#include "core/io/async_reader.h"
#include "prefetch/link/expert_stats.h"
#include "tracer/residency_list.h"

namespace moesaic {

// An expert that can be computed and does not move until it is released.
struct PinnedExpert {
  ExpertId id;
  const std::byte* blob = nullptr;  // layout().blob_bytes
  // The device in whose memory the blob lies, whose kernels may compute it there; -1: the host's.
  int32_t device = -1;
  const std::byte* home = nullptr;  // of a device's: the same bytes in host memory
};

// What a device has done since the start, and how it is. Experts are counted as in ExpertStats.
struct DeviceStatus {
  std::string name;
  bool lost = false;
  int64_t slots = 0;
  int64_t resident = 0;
  uint64_t hits = 0;
  uint64_t late_hits = 0;
  uint64_t misses = 0;
  uint64_t on_host = 0;
  uint64_t bytes_copied = 0;
};

// Where an expert is, seen from the fast memory.
enum class ExpertPresence : uint8_t { kAbsent, kResident, kArriving };

// What a link has done since the start. Times are those in which packets were in flight.
struct LinkUse {
  int64_t on_demand_us = 0;  // and a layer waited for at least one of them when it was issued
  int64_t prefetch_us = 0;   // and none was waited for
  uint64_t on_demand_packets = 0;
  uint64_t prefetch_packets = 0;
};

class ResizableSlots;

class ExpertProvider {
 public:
  virtual ~ExpertProvider() = default;

  // The step predictor has predicted for a step that begins: what it finds worth it may be fetched
  // ahead, until StopPrefetching (when no request is left).
  virtual void StepBegan() = 0;
  virtual void StopPrefetching() = 0;

  // The distinct experts that the layer needs (any order, one layer), for that many (token, slot)
  // pairs in all.
  virtual void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) = 0;
  // What later layers will want for certain, in place of what was expected before: what is missing
  // of it starts to load, in this order, behind what the open layer waits for, and stays until its
  // layer begins or it is expected no more. Experts of the open layer may be among it: they stay
  // when they have been released. Nothing depends on it but time. With or without an open layer.
  virtual void Expect(std::span<const ExpertId> /*experts*/) {}
  // In fast memory now. It may leave as soon as this returns.
  virtual bool IsResident(ExpertId /*expert*/) const { return true; }
  // Appends experts of the layer that can be computed and were not handed out yet to `out`; blocks
  // until there is at least one. Returns false when all were handed out. Throws Error when one
  // cannot be had; the layer is over then (EndLayer must still be called), later ones can be run.
  virtual bool NextReady(std::vector<PinnedExpert>& out) = 0;
  // The same without waiting: may append nothing while there are more to come. For who computes on
  // devices and has pins to release before it may wait.
  virtual bool TryNextReady(std::vector<PinnedExpert>& out) { return NextReady(out); }
  virtual void Release(const PinnedExpert& expert) = 0;
  // Returns the layer's counts. Pins that are still held (an exception on the way) end here.
  virtual ExpertStats EndLayer() = 0;

  // Loads absent experts in the given order while there is room (a warm start). `keep_going` (may
  // be empty) is asked with the number loaded so far, on this thread, each time that grows; false
  // ends the preload early. Returns how many were loaded. No layer may be open.
  virtual int64_t Preload(std::span<const ExpertId> experts,
                          const std::function<bool(int64_t loaded)>& keep_going) = 0;

  // Who is in fast memory, by descending worth to the eviction policy.
  virtual std::vector<ResidentExpert> Residents() const = 0;

  // For who looks on: writes where experts are into `places` ([layers * experts], by ExpertGrid's
  // numbers; kAbsent before) and appends a LinkUse for each link. False: it cannot tell.
  virtual bool Look(std::span<ExpertPresence> /*places*/, std::vector<LinkUse>& /*links*/) const {
    return false;
  }

  // Where the experts' files are in several places that share the reading: what each has carried
  // since the start, in place of what `out` had; none otherwise. Any thread.
  virtual void Links(std::vector<ReaderLink>& out) const { out.clear(); }

  virtual int64_t slots() const = 0;
  virtual int64_t resident() const = 0;
  // For who changes the number of slots while it works; null: it stays. Any thread.
  virtual ResizableSlots* resizable_slots() { return nullptr; }
  // Empty without devices. Valid until the next call of anything else.
  virtual std::span<const DeviceStatus> devices() { return {}; }
};

}  // namespace moesaic
