// Flow: what decides about one link and the fast memory behind it: what is moved next, what becomes
// of what arrived or failed, and what of it the open layer gets. A LinkMover asks it and moves the
// bytes. Two kinds: ExpertFlow (latency mode: what a layer lacks, then what is predicted) and
// StreamFlow (throughput mode: all experts, in the order in which layers run).
//
// A flow moves no bytes, knows no thread and takes the time as an argument, so that simulators run
// the object that serves.
//
// Thread contract: none of its own; the LinkMover that owns it guards it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/expert_grid.h"
#include "prefetch/link/expert_stats.h"
#include "prefetch/link/transfer_queue.h"
#include "tracer/residency_list.h"

namespace moesaic {

// What a flow has to know of its link.
struct LinkParameters {
  std::vector<ExpertCopy> copies = {};        // [all experts]; only its own are looked at
  std::span<const ExpertIndex> experts = {};  // what comes over it, for the constructor; empty: all
  int64_t slots = 1;
  int64_t most_slots = 0;  // that there may be later; 0: their number stays
  uint64_t slot_bytes = 1;
  int depth = 1;  // packets in flight at most
  int lanes = 1;  // see TransferQueue, also for the next two
  int max_packets = 1;
  int max_retries = 0;
};

class Flow {
 public:
  virtual ~Flow() = default;

  // --- the consumer
  // A step begins. From now until StopPrefetching something may be moved ahead of its layer.
  virtual void StepBegan(int64_t now_ns) = 0;
  virtual void StopPrefetching(int64_t now_ns) = 0;
  // The distinct experts of one layer that come over this link. What of them is missing is moved
  // from StartLoads on.
  virtual void BeginLayer(std::span<const ExpertIndex> needed, int64_t now_ns) = 0;
  virtual void StartLoads(int64_t /*now_ns*/) {}
  // Appends what can be computed and was not handed out yet; it stays until Release.
  virtual void TakeReady(std::vector<ExpertIndex>& out, int64_t now_ns) = 0;
  virtual bool ready() const = 0;
  virtual int64_t waiting() const = 0;  // needed, and neither handed out nor failed
  virtual bool WaitsFor(ExpertIndex expert) const = 0;
  // Something is on its way or can be moved: who waits will not wait for ever.
  virtual bool MakesProgress() = 0;
  virtual void Release(ExpertIndex expert, int64_t now_ns) = 0;
  // The layer has failed: nothing of it need be moved any more.
  virtual void GiveUpLayer() {}
  // What was handed out is released, what was not is no longer waited for.
  virtual ExpertStats EndLayer(int64_t now_ns) = 0;
  // Whether the consumer's calls since the last time may have given the link something to move.
  virtual bool HasNewWork() = 0;

  // --- the link
  struct Packet : TransferQueue::Packet {
    bool prefetch = false;  // nobody waited for it when it was issued
  };
  // The packet to move now, if there is one.
  virtual std::optional<Packet> NextPacket(int64_t now_ns) = 0;
  // kDone: the bytes are there; Commit follows, or Drop when they are no expert. kFailed: Drop
  // follows. Nothing is to be done in the other cases.
  virtual TransferState CompletePacket(const Packet& packet, PacketResult result,
                                       int64_t now_ns) = 0;
  virtual void Commit(ExpertIndex expert, int64_t now_ns) = 0;
  // Who is hurt by a copy that brought nothing: the layer, which no longer waits for it; the
  // preload; or nobody.
  enum class Hurt : uint8_t { kNobody, kLayer, kPreload };
  virtual Hurt Drop(ExpertIndex expert, int64_t now_ns) = 0;

  // --- the slots
  virtual int64_t slots() const = 0;
  virtual int64_t most_slots() const { return slots(); }
  virtual int64_t free_slots() const = 0;
  virtual int64_t slot(ExpertIndex expert) const = 0;  // of one that has one
  virtual int64_t present() const = 0;                 // experts that are there
  // There are more slots than there are to be: CloseSlot closes the last one, as soon as nobody
  // reads or fills it. `moved_to`: the slot to which the caller moves its bytes; -1: nobody is in
  // it any more.
  virtual bool closing() const { return false; }
  struct ClosedSlot {
    int64_t slot = -1;
    int64_t moved_to = -1;
  };
  virtual std::optional<ClosedSlot> CloseSlot(int64_t /*now_ns*/) { return std::nullopt; }
  // Who would still be there for a next request; in any order.
  virtual std::vector<ResidentExpert> Residents(int64_t now_ns) const = 0;

  const TransferQueue& queue() const { return queue_; }

 protected:
  explicit Flow(LinkParameters link)
      : queue_(static_cast<int64_t>(link.copies.size()), link.lanes, link.max_packets,
               link.max_retries),
        copies_(std::move(link.copies)),
        slot_bytes_(link.slot_bytes) {}

  const ExpertCopy& CopyOf(ExpertIndex expert) const {
    return copies_[static_cast<size_t>(expert)];
  }

  TransferQueue queue_;
  std::vector<ExpertCopy> copies_;  // [experts]
  uint64_t slot_bytes_;
};

}  // namespace moesaic
