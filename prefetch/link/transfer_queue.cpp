#include "prefetch/link/transfer_queue.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {

TransferQueue::TransferQueue(int64_t num_experts_total, int lanes, int max_packets, int max_retries)
    : max_packets_(max_packets),
      max_retries_(max_retries),
      transfers_(static_cast<size_t>(num_experts_total)),
      lanes_(static_cast<size_t>(lanes)),
      packets_(static_cast<size_t>(lanes) * static_cast<size_t>(max_packets)) {
  CHECK_GE(lanes, 1);
  CHECK_GE(max_packets, 1);
  CHECK_GE(max_retries, 0);
  CHECK_LT(max_retries, 255);  // PacketState::failures
  free_lanes_.reserve(lanes_.size());
  for (int lane = lanes - 1; lane >= 0; --lane) free_lanes_.push_back(lane);
  waiting_.reserve(transfers_.size());
  moving_.reserve(lanes_.size());
}

void TransferQueue::Add(ExpertIndex expert, int packets, TransferClass kind, float priority,
                        int64_t now) {
  Transfer& transfer = At(expert);
  CHECK(transfer.state == TransferState::kNone);
  CHECK_GE(packets, 0);
  CHECK_LE(packets, max_packets_);
  CHECK(priority == priority);  // NaN has no place in an order
  transfer = Transfer{.state = TransferState::kWaiting,
                      .kind = kind,
                      .priority = priority,
                      .sequence = ++sequence_,
                      .packets = std::max(packets, 1),
                      .since = now};
  ++size_;
  Push(expert);
}

void TransferQueue::Update(ExpertIndex expert, TransferClass kind, float priority) {
  Transfer& transfer = At(expert);
  CHECK(transfer.state == TransferState::kWaiting || transfer.state == TransferState::kMoving);
  CHECK(priority == priority);
  if (transfer.heap >= 0) Erase(expert);
  transfer.kind = kind;
  transfer.priority = priority;
  if (transfer.state == TransferState::kWaiting) {
    Push(expert);
    return;
  }
  Lane& lane = lanes_[static_cast<size_t>(transfer.lane)];
  if (kind == TransferClass::kOnDemand) lane.cancelling = false;
  if (HasPending(lane)) Push(expert);
}

TransferState TransferQueue::Cancel(ExpertIndex expert) {
  Transfer& transfer = At(expert);
  CHECK(transfer.state == TransferState::kWaiting || transfer.state == TransferState::kMoving);
  if (transfer.heap >= 0) Erase(expert);
  if (transfer.state == TransferState::kMoving) {
    Lane& lane = lanes_[static_cast<size_t>(transfer.lane)];
    lane.cancelling = true;
    if (lane.in_flight > 0) return transfer.state;
  }
  transfer.state = TransferState::kCancelled;
  ++counters_.cancelled;
  return transfer.state;
}

std::optional<TransferQueue::Packet> TransferQueue::NextPacket(int64_t now, bool on_demand_only) {
  // The best of those that have a lane, and the best of those that wait, if it may have one.
  ExpertIndex expert = moving_.empty() ? kNoExpert : moving_.front();
  if (!waiting_.empty() && MayStart(At(waiting_.front()).kind) &&
      (expert == kNoExpert || Before(waiting_.front(), expert))) {
    expert = waiting_.front();
  }
  if (expert == kNoExpert) return std::nullopt;
  if (on_demand_only && At(expert).kind != TransferClass::kOnDemand) return std::nullopt;
  const bool first = At(expert).state == TransferState::kWaiting;
  if (first) Start(expert, now);
  const int32_t lane_index = At(expert).lane;
  Lane& lane = lanes_[static_cast<size_t>(lane_index)];
  const int32_t packet = TakePending(lane, lane_index);
  if (!HasPending(lane)) Erase(expert);
  AddBusy(now, counters_);
  changed_ = now;
  PacketAt(lane_index, packet).issued_as = At(expert).kind;
  if (At(expert).kind == TransferClass::kOnDemand) ++on_demand_in_flight_;
  ++lane.in_flight;
  ++packets_in_flight_;
  ++counters_.packets_issued;
  return Packet{expert, lane_index, packet, first};
}

TransferState TransferQueue::CompletePacket(ExpertIndex expert, int32_t packet, PacketResult result,
                                            int64_t now) {
  Transfer& transfer = At(expert);
  CHECK(transfer.state == TransferState::kMoving);
  Lane& lane = lanes_[static_cast<size_t>(transfer.lane)];
  PacketState& state = PacketAt(transfer.lane, packet);
  CHECK(state.state == PacketState::kInFlight);
  AddBusy(now, counters_);
  changed_ = now;
  const bool on_demand = state.issued_as == TransferClass::kOnDemand;
  if (on_demand) --on_demand_in_flight_;
  --lane.in_flight;
  --packets_in_flight_;
  if (result == PacketResult::kOk) {
    state.state = PacketState::kDone;
    ++lane.done;
    ++counters_.packets_done;
    if (!on_demand) ++counters_.prefetch_packets_done;
    return Settle(expert, now);
  }
  ++counters_.packets_failed;
  state.state = PacketState::kPending;
  ++lane.to_retry;
  if (result == PacketResult::kHopeless || state.failures++ >= max_retries_) {
    lane.failing = true;
    if (transfer.heap >= 0) Erase(expert);
  } else if (transfer.heap < 0 && HasPending(lane)) {
    Push(expert);
  }
  return Settle(expert, now);
}

void TransferQueue::AddBusy(int64_t now, TransferCounters& counters) const {
  if (packets_in_flight_ == 0) return;
  (on_demand_in_flight_ > 0 ? counters.on_demand_busy : counters.prefetch_busy) += now - changed_;
}

TransferCounters TransferQueue::CountersAt(int64_t now) const {
  TransferCounters counters = counters_;
  AddBusy(now, counters);
  return counters;
}

void TransferQueue::Remove(ExpertIndex expert) {
  Transfer& transfer = At(expert);
  CHECK(transfer.state == TransferState::kDone || transfer.state == TransferState::kFailed ||
        transfer.state == TransferState::kCancelled);
  if (transfer.lane >= 0) {
    lanes_[static_cast<size_t>(transfer.lane)].expert = kNoExpert;
    free_lanes_.push_back(transfer.lane);
  }
  transfer = Transfer{};
  --size_;
}

bool TransferQueue::cancelling(ExpertIndex expert) const {
  const Transfer& transfer = At(expert);
  return transfer.state == TransferState::kMoving &&
         lanes_[static_cast<size_t>(transfer.lane)].cancelling;
}

int32_t TransferQueue::packets_done(ExpertIndex expert) const {
  const Transfer& transfer = At(expert);
  return transfer.lane < 0 ? 0 : lanes_[static_cast<size_t>(transfer.lane)].done;
}

// After a packet came back: has the transfer come to an end?
TransferState TransferQueue::Settle(ExpertIndex expert, int64_t now) {
  Transfer& transfer = At(expert);
  const Lane& lane = lanes_[static_cast<size_t>(transfer.lane)];
  if (lane.in_flight > 0) return transfer.state;
  // A transfer whose last packet arrived while it was being cancelled is done: the bytes are there.
  if (lane.done == transfer.packets) {
    transfer.state = TransferState::kDone;
    ++counters_.done;
    counters_.moved += now - transfer.since;
  } else if (lane.failing) {
    transfer.state = TransferState::kFailed;
    ++counters_.failed;
  } else if (lane.cancelling) {
    transfer.state = TransferState::kCancelled;
    ++counters_.cancelled;
  }
  return transfer.state;
}

bool TransferQueue::MayStart(TransferClass kind) const {
  // A lone lane serves both classes: keeping it for on-demand transfers would forbid prefetching.
  const size_t kept_free = kind == TransferClass::kPrefetch && lanes_.size() > 1 ? 1 : 0;
  return free_lanes_.size() > kept_free;
}

bool TransferQueue::HasPending(const Lane& lane) const {
  return !lane.cancelling && !lane.failing &&
         (lane.to_retry > 0 || lane.next_fresh < At(lane.expert).packets);
}

void TransferQueue::Start(ExpertIndex expert, int64_t now) {
  Erase(expert);
  Transfer& transfer = At(expert);
  transfer.lane = free_lanes_.back();
  free_lanes_.pop_back();
  lanes_[static_cast<size_t>(transfer.lane)] = Lane{.expert = expert};
  for (int32_t p = 0; p < transfer.packets; ++p) PacketAt(transfer.lane, p) = PacketState{};
  transfer.state = TransferState::kMoving;
  counters_.waited += now - transfer.since;
  transfer.since = now;
  Push(expert);
}

// Failed packets first: they have waited longest.
int32_t TransferQueue::TakePending(Lane& lane, int32_t lane_index) {
  int32_t packet = 0;
  if (lane.to_retry > 0) {
    while (PacketAt(lane_index, packet).state != PacketState::kPending) ++packet;
    --lane.to_retry;
  } else {
    packet = lane.next_fresh++;
  }
  PacketAt(lane_index, packet).state = PacketState::kInFlight;
  return packet;
}

TransferQueue::Transfer& TransferQueue::At(ExpertIndex expert) {
  CHECK_GE(expert, 0);
  CHECK_LT(static_cast<size_t>(expert), transfers_.size());
  return transfers_[static_cast<size_t>(expert)];
}

TransferQueue::PacketState& TransferQueue::PacketAt(int32_t lane, int32_t packet) {
  CHECK_GE(packet, 0);
  CHECK_LT(packet, max_packets_);
  return packets_[static_cast<size_t>(lane) * static_cast<size_t>(max_packets_) +
                  static_cast<size_t>(packet)];
}

bool TransferQueue::Before(ExpertIndex a, ExpertIndex b) const {
  const Transfer& x = At(a);
  const Transfer& y = At(b);
  if (x.kind != y.kind) return x.kind == TransferClass::kOnDemand;
  if (x.priority != y.priority) return x.priority > y.priority;
  return x.sequence < y.sequence;
}

TransferQueue::Heap& TransferQueue::HeapOf(const Transfer& transfer) {
  return transfer.state == TransferState::kWaiting ? waiting_ : moving_;
}

void TransferQueue::Push(ExpertIndex expert) {
  Heap& heap = HeapOf(At(expert));
  heap.push_back(expert);
  SiftUp(heap, heap.size() - 1);
}

void TransferQueue::Erase(ExpertIndex expert) {
  Transfer& transfer = At(expert);
  Heap& heap = HeapOf(transfer);
  const auto position = static_cast<size_t>(transfer.heap);
  CHECK(position < heap.size() && heap[position] == expert);
  transfer.heap = -1;
  const ExpertIndex last = heap.back();
  heap.pop_back();
  if (last == expert) return;
  Place(heap, position, last);
  SiftUp(heap, position);
  SiftDown(heap, static_cast<size_t>(At(last).heap));
}

void TransferQueue::Place(Heap& heap, size_t position, ExpertIndex expert) {
  heap[position] = expert;
  At(expert).heap = static_cast<int32_t>(position);
}

void TransferQueue::SiftUp(Heap& heap, size_t position) {
  const ExpertIndex expert = heap[position];
  while (position > 0 && Before(expert, heap[(position - 1) / 2])) {
    Place(heap, position, heap[(position - 1) / 2]);
    position = (position - 1) / 2;
  }
  Place(heap, position, expert);
}

void TransferQueue::SiftDown(Heap& heap, size_t position) {
  const ExpertIndex expert = heap[position];
  for (;;) {
    size_t child = 2 * position + 1;
    if (child >= heap.size()) break;
    if (child + 1 < heap.size() && Before(heap[child + 1], heap[child])) ++child;
    if (!Before(heap[child], expert)) break;
    Place(heap, position, heap[child]);
    position = child;
  }
  Place(heap, position, expert);
}

}  // namespace moesaic
