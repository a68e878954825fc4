// TransferQueue: which packet of which expert a link moves next. Bookkeeping only: a plain state
// machine that moves no bytes, knows no thread and takes the time as an argument, so that the
// simulator and the tests drive the very object that serves.
//
// Thread contract: none of its own; the owner (prefetch/link/expert_flow) guards it. Nothing is
// allocated after construction.
//
// A transfer waits, then starts: it gets a *lane* (a number below `lanes`; the owner keeps a
// staging buffer per lane) which it holds until Remove. It is moved in packets, several of which
// may be in flight. On-demand transfers go before prefetches, then the higher priority, then the
// older one. Because the order is asked per packet, an urgent transfer waits for no more than what
// is in flight; the one that it overtakes keeps its lane and its progress. Prefetches leave a lane
// free (when there are two or more), so that an urgent transfer need not wait for one of them to
// end.
//
//   Add -> waiting -> (NextPacket) moving -> (last CompletePacket) done   -> Remove
//                          |                                       failed -> Remove
//                          +-- Cancel, then its packets in flight  cancelled -> Remove
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/expert_grid.h"

namespace moesaic {

enum class TransferClass : uint8_t { kOnDemand, kPrefetch };

enum class PacketResult : uint8_t {
  kOk,
  kError,     // may succeed when it is tried again
  kHopeless,  // will not: the transfer fails
};

enum class TransferState : uint8_t {
  kNone,       // not in the queue
  kWaiting,    // no packet was issued yet
  kMoving,     // has a lane
  kDone,       // all packets arrived; holds its lane until Remove, as do the next two
  kFailed,     // gave up, and nothing of it is in flight any more
  kCancelled,  // likewise
};

// What copying one expert takes.
struct ExpertCopy {
  int32_t packets = 0;
  uint64_t bytes = 0;
};

// Monotone; times are in the unit of the owner's `now`.
struct TransferCounters {
  uint64_t packets_issued = 0;
  uint64_t packets_done = 0;
  uint64_t packets_failed = 0;  // each failed try
  uint64_t done = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  int64_t waited = 0;  // from Add to the first packet, over transfers that started
  int64_t moved = 0;   // from the first packet to done, over transfers that got there
  // How long packets were in flight, of which at least one was issued on demand; of which none was.
  int64_t on_demand_busy = 0;
  int64_t prefetch_busy = 0;
  uint64_t prefetch_packets_done = 0;  // of packets_done, those issued as prefetches
};

class TransferQueue {
 public:
  struct Packet {
    ExpertIndex expert = kNoExpert;
    int32_t lane = 0;
    int32_t packet = 0;
    bool first = false;  // of its transfer: the lane is newly its own
  };

  // Experts [0, num_experts_total); transfers of at most max_packets. A packet that fails with
  // kError is issued again up to max_retries times.
  TransferQueue(int64_t num_experts_total, int lanes, int max_packets, int max_retries);

  // `packets` may be 0: the transfer is issued as one packet all the same (its owner has something
  // to do for it, but nothing to read). The expert must not be in the queue.
  void Add(ExpertIndex expert, int packets, TransferClass kind, float priority, int64_t now);
  // Changes the order from the next packet on. An on-demand update of a transfer that is being
  // cancelled revives it with its progress. The transfer must be waiting or moving.
  void Update(ExpertIndex expert, TransferClass kind, float priority);
  // Waiting or moving without packets in flight: cancelled at once. Otherwise no further packet is
  // issued and it is cancelled when the last one in flight completes. Returns the state.
  TransferState Cancel(ExpertIndex expert);

  // The next packet to move, which is in flight from now on; nullopt when none can be issued, or
  // only a prefetch's and `on_demand_only`.
  std::optional<Packet> NextPacket(int64_t now, bool on_demand_only = false);
  // Returns the transfer's state: kMoving while there is more to come.
  TransferState CompletePacket(ExpertIndex expert, int32_t packet, PacketResult result,
                               int64_t now);
  // Forgets a transfer that is done, failed or cancelled, and frees its lane.
  void Remove(ExpertIndex expert);

  TransferState state(ExpertIndex expert) const { return At(expert).state; }
  TransferClass kind(ExpertIndex expert) const { return At(expert).kind; }
  bool cancelling(ExpertIndex expert) const;  // Cancel was called, packets are in flight
  int32_t lane(ExpertIndex expert) const { return At(expert).lane; }  // -1 without one
  int32_t packets(ExpertIndex expert) const { return At(expert).packets; }
  int32_t packets_done(ExpertIndex expert) const;
  // When it was added; from its first packet on, when that was issued.
  int64_t since(ExpertIndex expert) const { return At(expert).since; }
  int64_t size() const { return size_; }  // transfers that were not removed yet
  int64_t packets_in_flight() const { return packets_in_flight_; }
  // The busy times count until the last packet that was issued or came back.
  const TransferCounters& counters() const { return counters_; }
  // And these until now.
  TransferCounters CountersAt(int64_t now) const;

 private:
  struct Transfer {
    TransferState state = TransferState::kNone;
    TransferClass kind = TransferClass::kOnDemand;
    float priority = 0;
    uint64_t sequence = 0;
    int32_t packets = 0;
    int32_t lane = -1;
    int32_t heap = -1;  // position in its heap; -1: in none
    int64_t since = 0;
  };
  struct PacketState {
    enum : uint8_t { kPending, kInFlight, kDone } state = kPending;
    uint8_t failures = 0;
    TransferClass issued_as = TransferClass::kOnDemand;
  };
  struct Lane {
    ExpertIndex expert = kNoExpert;
    int32_t next_fresh = 0;  // packets from here on were never issued
    int32_t to_retry = 0;    // pending packets below next_fresh
    int32_t in_flight = 0;
    int32_t done = 0;
    bool cancelling = false;
    bool failing = false;
  };
  // A binary heap of experts, the next one first; positions are kept in the transfers.
  using Heap = std::vector<ExpertIndex>;

  Transfer& At(ExpertIndex expert);
  const Transfer& At(ExpertIndex expert) const {
    return const_cast<TransferQueue*>(this)->At(expert);
  }
  PacketState& PacketAt(int32_t lane, int32_t packet);
  bool Before(ExpertIndex a, ExpertIndex b) const;
  Heap& HeapOf(const Transfer& transfer);
  void Push(ExpertIndex expert);
  void Erase(ExpertIndex expert);
  void SiftUp(Heap& heap, size_t position);
  void SiftDown(Heap& heap, size_t position);
  void Place(Heap& heap, size_t position, ExpertIndex expert);
  bool MayStart(TransferClass kind) const;
  bool HasPending(const Lane& lane) const;
  void Start(ExpertIndex expert, int64_t now);
  int32_t TakePending(Lane& lane, int32_t lane_index);
  TransferState Settle(ExpertIndex expert, int64_t now);
  void AddBusy(int64_t now, TransferCounters& counters) const;

  int max_packets_;
  int max_retries_;
  std::vector<Transfer> transfers_;   // [num_experts_total]
  std::vector<Lane> lanes_;           // [lanes]
  std::vector<PacketState> packets_;  // [lanes, max_packets]
  std::vector<int32_t> free_lanes_;   // a stack
  Heap waiting_;                      // not started
  Heap moving_;                       // started, with packets to issue
  uint64_t sequence_ = 0;
  int64_t size_ = 0;
  int64_t packets_in_flight_ = 0;
  int64_t on_demand_in_flight_ = 0;  // of these, issued on demand
  int64_t changed_ = 0;              // when packets_in_flight_ did
  TransferCounters counters_;
};

}  // namespace moesaic
