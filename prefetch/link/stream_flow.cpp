#include "prefetch/link/stream_flow.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

StreamFlow::StreamFlow(const ExpertGrid& grid, const SparseLayers& layers, int64_t slots,
                       int64_t buffers, int64_t group, LinkParameters link)
    : Flow(link),
      grid_(grid),
      layers_(layers),
      resident_slot_(static_cast<size_t>(grid.total()), -1),
      streams_(grid, true),
      state_(static_cast<size_t>(grid.total()), State::kAbsent),
      absent_(grid, true),
      there_(grid),
      slot_(static_cast<size_t>(grid.total()), -1),
      needed_(grid),
      expected_(grid, link.experts.empty()),
      used_(grid),
      ahead_(grid),
      unwanted_(grid),
      position_(layers.count() - 1),
      lanes_(link.lanes) {
  CHECK_GT(slots, 0);
  for (const ExpertIndex expert : link.experts) expected_.Add(expert);
  int64_t all = 0;
  for (int number = 0; number < layers.count(); ++number) {
    for (int64_t index = 0; index < grid.num_experts(); ++index) {
      all += expected_.Has(IndexOf(number, index)) ? 1 : 0;
    }
  }
  const bool all_fit = slots >= all;
  const int64_t residents = all_fit ? all : slots - std::clamp<int64_t>(buffers, 1, slots);
  for (int number = 0; number < layers.count(); ++number) {
    int64_t left = residents / layers.count() + (number < residents % layers.count());
    for (int64_t index = 0; index < grid.num_experts(); ++index) {
      const ExpertIndex expert = IndexOf(number, index);
      if (!expected_.Has(expert) || (left-- <= 0 && !all_fit)) continue;
      resident_slot_[At(expert)] = residents_++;
      streams_.Remove(expert);
    }
  }
  // With slots of a layer that has fewer experts than its share.
  buffers_ = all_fit ? 0 : slots - residents_;
  resident_group_ = all_fit ? grid.num_experts() : group;
  streamed_group_ = std::clamp<int64_t>(buffers_ / 2, 1, group);
  for (int64_t slot = buffers_ - 1; slot >= 0; --slot) free_.push_back(residents_ + slot);
}

void StreamFlow::BeginPass(int visits) {
  CHECK(!open_);
  CHECK_GE(visits, 1);
  if (!last_visit()) Leave();
  visits_ = visits;
  visit_ = visits;
}

void StreamFlow::SetState(ExpertIndex expert, State state) {
  state_[At(expert)] = state;
  state == State::kAbsent ? absent_.Add(expert) : absent_.Remove(expert);
  state == State::kReady ? there_.Add(expert) : there_.Remove(expert);
}

void StreamFlow::Free(ExpertIndex expert) {
  free_.push_back(slot_[At(expert)]);
  slot_[At(expert)] = -1;
  SetState(expert, State::kAbsent);
}

// Leaves its buffer before it is computed, or between two visits.
void StreamFlow::Evict(ExpertIndex expert) {
  --present_;
  stats_.prefetched_unused += ahead_.Take(expert) ? 1 : 0;
  Free(expert);
}

// No visit of the layer follows: what it did not use is not expected of it, and goes.
void StreamFlow::Leave() {
  visit_ = visits_;
  const int layer = layers_.layer(position_);
  expected_.CopyLayer(layer, used_);
  for (int n = 0; n < streams_.words(); ++n) {
    uint64_t left = streams_.word(layer, n) & ~needed_.word(layer, n) & ~absent_.word(layer, n);
    for (; left != 0; left &= left - 1) {
      const ExpertIndex expert = IndexOf(position_, n * 64 + std::countr_zero(left));
      if (state(expert) == State::kReady) Evict(expert);
      if (state(expert) == State::kLoading) unwanted_.Add(expert);
    }
  }
}

void StreamFlow::BeginLayer(std::span<const ExpertIndex> experts, int64_t /*now_ns*/) {
  CHECK(!open_);
  CHECK(!experts.empty());
  const int number = layers_.number(grid_.Id(experts.front()).layer);
  const bool again = number == position_ && !last_visit();
  if (!again && !last_visit()) Leave();
  open_ = true;
  visit_ = again ? visit_ + 1 : 1;
  position_ = number;
  if (!again) used_.ClearLayer(layers_.layer(number));
  for (const ExpertIndex expert : experts) {
    CHECK_EQ(grid_.Id(expert).layer, layers_.layer(position_));
    used_.Add(expert);
    needed_.Add(expert);
    ++waiting_;
    const State now = state_[At(expert)];
    stats_.hits += now == State::kReady;
    stats_.late_hits += now == State::kLoading;
    stats_.misses += now == State::kAbsent;
    ready_ += now == State::kReady;
    stats_.prefetched_used += ahead_.Take(expert) ? 1 : 0;
  }
  if (last_visit()) Leave();
}

void StreamFlow::TakeReady(std::vector<ExpertIndex>& out, int64_t /*now_ns*/) {
  CHECK(open_);
  const int layer = layers_.layer(position_);
  for (const bool residents : {false, true}) {
    const int64_t most = residents ? resident_group_ : streamed_group_;
    int64_t taken = 0;
    for (; taken < most; ++taken) {
      const std::optional<int> index = FirstOf(needed_.words(), [&](int n) {
        const uint64_t streams = streams_.word(layer, n);
        return needed_.word(layer, n) & there_.word(layer, n) & (residents ? ~streams : streams);
      });
      if (!index) break;
      const ExpertIndex expert = IndexOf(position_, *index);
      SetState(expert, State::kHeld);
      needed_.Remove(expert);
      --waiting_;
      --ready_;
      out.push_back(expert);
    }
    // Residents wait for the next call: what streams is to leave its buffers soon.
    if (taken > 0) return;
  }
}

void StreamFlow::Release(ExpertIndex expert, int64_t /*now_ns*/) {
  CHECK(state(expert) == State::kHeld);
  if (resident(expert) || !last_visit()) {
    SetState(expert, State::kReady);
  } else {
    --present_;
    Free(expert);
  }
}

ExpertStats StreamFlow::EndLayer(int64_t now_ns) {
  CHECK(open_);
  const int layer = layers_.layer(position_);
  for (int n = 0; n < needed_.words(); ++n) {
    uint64_t left = needed_.word(layer, n) | (~absent_.word(layer, n) & ~there_.word(layer, n));
    for (; left != 0; left &= left - 1) {
      const int index = n * 64 + std::countr_zero(left);
      if (index >= grid_.num_experts()) break;
      const ExpertIndex expert = IndexOf(position_, index);
      if (state(expert) == State::kHeld) Release(expert, now_ns);
      if (!needed_.Take(expert) || resident(expert)) continue;
      // The layer was given up.
      if (state(expert) == State::kReady) Evict(expert);
      if (state(expert) == State::kLoading) unwanted_.Add(expert);
    }
  }
  open_ = false;
  waiting_ = 0;
  ready_ = 0;
  const uint64_t failed = queue_.counters().packets_failed;
  stats_.failed_reads = failed - std::exchange(failed_before_, failed);
  return std::exchange(stats_, {});
}

// The open layer's own come last: a later visit needs those soonest.
std::optional<ExpertIndex> StreamFlow::FarthestReadAhead() const {
  for (int distance = layers_.count() - 1; distance >= 0; --distance) {
    const int number = (position_ + distance) % layers_.count();
    const int layer = layers_.layer(number);
    const std::optional<int> index = LastOf(streams_.words(), [&](int n) {
      return streams_.word(layer, n) & there_.word(layer, n) & ~needed_.word(layer, n);
    });
    if (index) return IndexOf(number, *index);
  }
  return std::nullopt;
}

std::optional<ExpertIndex> StreamFlow::FindAhead(int distance) const {
  const int number = (position_ + distance) % layers_.count();
  const int layer = layers_.layer(number);
  const std::optional<int> index = FirstOf(streams_.words(), [&](int n) {
    return streams_.word(layer, n) & absent_.word(layer, n) & expected_.word(layer, n);
  });
  if (!index) return std::nullopt;
  return IndexOf(number, *index);
}

// The next expert to read, if it can have a slot; the buffer that has to make room for it, if one
// has to.
std::optional<ExpertIndex> StreamFlow::Find(std::optional<ExpertIndex>* victim) {
  if (open_ && waiting_ > ready_) {
    const int layer = layers_.layer(position_);
    const std::optional<int> index = FirstOf(
        needed_.words(), [&](int n) { return needed_.word(layer, n) & absent_.word(layer, n); });
    if (index) {
      const ExpertIndex expert = IndexOf(position_, *index);
      if (resident(expert) || !free_.empty()) return expert;
      const std::optional<ExpertIndex> farthest = FarthestReadAhead();
      if (!farthest) return std::nullopt;
      if (victim != nullptr) *victim = farthest;
      return expert;
    }
  }
  if (!may_read_ahead_ || free_.empty()) return std::nullopt;
  // For the visits that follow; when all were, for the next pass, after all other layers.
  const int first = last_visit() ? 1 : 0;
  for (int distance = first; distance < first + layers_.count(); ++distance) {
    if (const auto expert = FindAhead(distance)) return expert;
  }
  return std::nullopt;
}

std::optional<ExpertIndex> StreamFlow::NextLoad() {
  std::optional<ExpertIndex> victim;
  const std::optional<ExpertIndex> expert = Find(&victim);
  if (!expert) return std::nullopt;
  if (victim) Evict(*victim);
  if (resident(*expert)) {
    slot_[At(*expert)] = resident_slot_[At(*expert)];
  } else {
    slot_[At(*expert)] = free_.back();
    free_.pop_back();
    if (!WaitsFor(*expert)) {
      ++stats_.prefetched;
      ahead_.Add(*expert);
    }
  }
  SetState(*expert, State::kLoading);
  unwanted_.Remove(*expert);
  ++loading_;
  return expert;
}

void StreamFlow::Loaded(ExpertIndex expert, uint64_t bytes) {
  CHECK(state(expert) == State::kLoading);
  --loading_;
  ++present_;
  stats_.bytes_read += bytes;
  SetState(expert, State::kReady);
  if (WaitsFor(expert)) {
    ++ready_;
  } else if (unwanted_.Has(expert)) {
    Evict(expert);
  }
}

bool StreamFlow::Failed(ExpertIndex expert) {
  CHECK(state(expert) == State::kLoading);
  --loading_;
  ++stats_.given_up;
  expected_.Remove(expert);  // not again before a layer needs it
  ahead_.Remove(expert);
  if (resident(expert)) {
    slot_[At(expert)] = -1;
    SetState(expert, State::kAbsent);
  } else {
    Free(expert);
  }
  if (!WaitsFor(expert)) return false;
  needed_.Remove(expert);
  --waiting_;
  return true;
}

// --- by packets

void StreamFlow::StepBegan(int64_t /*now_ns*/) {
  BeginPass(next_visits_);
  may_read_ahead_ = !given_up_;
}

// One expert after the other, each to its last packet; as many at a time as there are lanes.
std::optional<Flow::Packet> StreamFlow::NextPacket(int64_t now_ns) {
  auto next = queue_.NextPacket(now_ns);
  if (!next && queue_.size() < lanes_) {
    if (const std::optional<ExpertIndex> expert = NextLoad()) {
      queue_.Add(*expert, CopyOf(*expert).packets, TransferClass::kOnDemand, 0, now_ns);
      next = queue_.NextPacket(now_ns);
    }
  }
  if (!next) return std::nullopt;
  return Packet{*next, false};
}

TransferState StreamFlow::CompletePacket(const Packet& packet, PacketResult result,
                                         int64_t now_ns) {
  return queue_.CompletePacket(packet.expert, packet.packet, result, now_ns);
}

void StreamFlow::Commit(ExpertIndex expert, int64_t /*now_ns*/) {
  queue_.Remove(expert);
  Loaded(expert, slot_bytes_);
}

Flow::Hurt StreamFlow::Drop(ExpertIndex expert, int64_t /*now_ns*/) {
  queue_.Remove(expert);
  return Failed(expert) ? Hurt::kLayer : Hurt::kNobody;
}

std::vector<ResidentExpert> StreamFlow::Residents(int64_t /*now_ns*/) const {
  std::vector<ResidentExpert> residents;
  for (ExpertIndex expert = 0; expert < grid_.total(); ++expert) {
    if (!resident(expert) || state(expert) != State::kReady) continue;
    residents.push_back({grid_.Id(expert), 1.0f});
  }
  return residents;
}

}  // namespace moesaic
