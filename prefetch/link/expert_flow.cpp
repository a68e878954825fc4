#include "prefetch/link/expert_flow.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "prefetch/link/moving_average.h"

namespace moesaic {
namespace {

// Of a transfer that a later layer waits for: behind those of the open layer, before prefetches.
constexpr float kExpectedPriority = -1;

// Slots whose experts come and go, as many as there may ever be.
int64_t MostChangingSlots(const LinkParameters& link, const ExpertFlowOptions& options) {
  return std::max(link.slots, link.most_slots) - std::ssize(options.kept);
}

// A layer's read that arrives while prefetches are in flight waits for them: fewer than a layer's
// own reads, yet enough to keep a disk busy.
int PrefetchDepth(const LinkParameters& link) { return std::max(1, link.depth / 4); }

std::unique_ptr<EvictionPolicy> PolicyOr(std::unique_ptr<EvictionPolicy> policy,
                                         const std::optional<LinkPrefetch>& prefetch,
                                         int64_t experts) {
  if (policy != nullptr) return policy;
  return prefetch ? MakeNextUsePolicy(prefetch->worth()) : MakeLruPolicy(experts);
}

}  // namespace

ExpertFlow::ExpertFlow(const ExpertGrid& grid, LinkParameters link,
                       std::unique_ptr<EvictionPolicy> policy, const ExpertFlowOptions& options)
    : Flow(link),
      grid_(grid),
      readers_(options.readers),
      link_(options.link),
      prefetch_depth_(PrefetchDepth(link)),
      lanes_(link.lanes),
      kept_(std::ssize(options.kept)),
      step_predictor_(options.step_predictor),
      log_(options.log),
      copy_ns_(static_cast<double>(options.copy_ns)),
      prefetch_(options.step_predictor != nullptr &&
                        MayPrefetch(MostChangingSlots(link, options),
                                    options.step_predictor->shape().top_k)
                    ? std::make_optional<LinkPrefetch>(*options.step_predictor, link.experts)
                    : std::nullopt),
      cache_(grid.total(), link.slots, link.slot_bytes,
             PolicyOr(std::move(policy), prefetch_, grid.total()), options.readers,
             link.most_slots),
      need_(static_cast<size_t>(grid.total()), Need::kNone),
      uses_(static_cast<size_t>(grid.total()), 0),
      expectation_(static_cast<size_t>(grid.total()), 0),
      began_as_prefetch_(static_cast<size_t>(grid.total()), 0) {
  CHECK_EQ(copies_.size(), static_cast<size_t>(grid.total()));
  const auto experts = static_cast<size_t>(grid.num_experts());
  needed_.reserve(experts);
  missing_.reserve(experts);
  ready_.reserve(experts);
  expected_.reserve(static_cast<size_t>(grid.total()));
  for (const ExpertIndex expert : options.kept) cache_.Want(expert);
}

// --- the consumer

void ExpertFlow::StepBegan(int64_t now_ns) {
  if (!prefetch_) return;
  prefetch_->TakeOver(*step_predictor_);
  prefetch_->StepBegan(now_ns);
  may_prefetch_ = true;
  has_new_work_ = true;
}

void ExpertFlow::StopPrefetching(int64_t now_ns) {
  may_prefetch_ = false;
  Expect({}, now_ns);
}

void ExpertFlow::BeginLayer(std::span<const ExpertIndex> needed, int64_t now_ns) {
  CHECK(!layer_open_);
  layer_open_ = true;
  loads_started_ = false;
  if (prefetch_) {
    prefetch_->LayerBegan(now_ns);
    prefetch_->TakeOver(*step_predictor_);
  }
  for (const ExpertIndex expert : needed) {
    CHECK(NeedOf(expert) == Need::kNone);  // distinct
    StopExpecting(expert);
    NeedOf(expert) = Need::kWaiting;
    needed_.push_back(expert);
    ++uses_[static_cast<size_t>(expert)];
    cache_.Want(expert);
    switch (cache_.state(expert)) {
      case ExpertCache::State::kResident:
        ++stats_.hits;
        ready_.push_back(expert);
        break;
      case ExpertCache::State::kLoading:
        ++stats_.late_hits;
        break;
      case ExpertCache::State::kAbsent:
        ++stats_.misses;
        missing_.push_back(expert);
        break;
    }
  }
  waiting_ = static_cast<int64_t>(needed_.size());
  if (readers_ != nullptr && !needed.empty()) readers_->Follow(grid_.Id(needed.front()).layer);
  if (prefetch_) CancelStalePrefetches(now_ns);
}

void ExpertFlow::Missed(std::vector<MissedExpert>& out) const {
  for (const ExpertIndex expert : needed_) {
    if (cache_.state(expert) == ExpertCache::State::kResident) continue;
    const int32_t all = std::max(CopyOf(expert).packets, 1);
    const int32_t left = all - (BeingCopied(expert) ? queue_.packets_done(expert) : 0);
    out.push_back({expert, link_, static_cast<int64_t>(copy_ns_ * left / all),
                   prefetch_ ? prefetch_->worth().Worth(expert) : 0, false});
  }
}

bool ExpertFlow::ComputeOnHost(ExpertIndex expert, int64_t now_ns) {
  CHECK(layer_open_ && !loads_started_);
  CHECK(NeedOf(expert) == Need::kWaiting);
  if (cache_.state(expert) == ExpertCache::State::kResident) return false;
  std::erase(missing_, expert);
  LeaveOut(expert);
  ++stats_.on_host;
  Log(FlowEvent::Kind::kOnHost, expert, 0, now_ns);
  return true;
}

void ExpertFlow::Expect(std::span<const ExpertIndex> experts, int64_t now_ns) {
  constexpr uint8_t kAgain = 2;
  for (const ExpertIndex expert : experts) {
    if (ExpectationOf(expert) == 0) cache_.Want(expert);
    ExpectationOf(expert) = kAgain;
    if (BeingCopied(expert) && NeedOf(expert) != Need::kWaiting) {
      queue_.Update(expert, TransferClass::kOnDemand, kExpectedPriority);
    }
  }
  for (const ExpertIndex expert : expected_) {
    if (ExpectationOf(expert) == kAgain || !StopExpecting(expert)) continue;
    if (NeedOf(expert) != Need::kWaiting && queue_.state(expert) == TransferState::kWaiting) {
      Cancel(expert, now_ns);
    }
  }
  expected_.clear();
  next_expected_ = 0;
  for (const ExpertIndex expert : experts) {
    if (ExpectationOf(expert) != kAgain) continue;
    ExpectationOf(expert) = 1;
    expected_.push_back(expert);
  }
  has_new_work_ |= StartMissing(now_ns);
}

// What the layer or nobody wants now; a copy on its way goes on as a prefetch. Whether it was
// expected.
bool ExpertFlow::StopExpecting(ExpertIndex expert) {
  if (std::exchange(ExpectationOf(expert), uint8_t{0}) == 0) return false;
  cache_.Unwant(expert);
  if (BeingCopied(expert) && NeedOf(expert) != Need::kWaiting) {
    queue_.Update(expert, TransferClass::kPrefetch, 0);
  }
  return true;
}

void ExpertFlow::StartLoads(int64_t now_ns) {
  CHECK(layer_open_ && !loads_started_);
  loads_started_ = true;
  // With what was predicted since the last layer, an idle link may have something to fetch ahead.
  has_new_work_ |= may_prefetch_;
  for (const ExpertIndex expert : needed_) {
    if (NeedOf(expert) != Need::kWaiting || !BeingCopied(expert)) continue;
    queue_.Update(expert, TransferClass::kOnDemand, 0);
    has_new_work_ = true;
  }
  has_new_work_ |= StartMissing(now_ns);
  NoteReady(now_ns);
}

void ExpertFlow::TakeReady(std::vector<ExpertIndex>& out, int64_t now_ns) {
  for (const ExpertIndex expert : ready_) {
    CHECK(cache_.Pin(expert, now_ns).has_value());
    cache_.Unwant(expert);
    NeedOf(expert) = Need::kPinned;
    out.push_back(expert);
    Log(FlowEvent::Kind::kHandedOut, expert, 0, now_ns);
  }
  waiting_ -= static_cast<int64_t>(ready_.size());
  ready_.clear();
  NoteReady(now_ns);
}

void ExpertFlow::Release(ExpertIndex expert, int64_t now_ns) {
  CHECK(NeedOf(expert) == Need::kPinned);
  NeedOf(expert) = Need::kOver;
  cache_.Unpin(expert);
  has_new_work_ |= StartMissing(now_ns);
}

ExpertStats ExpertFlow::EndLayer(int64_t now_ns) {
  CHECK(layer_open_);
  for (const ExpertIndex expert : needed_) {
    if (NeedOf(expert) == Need::kPinned) cache_.Unpin(expert);
    if (NeedOf(expert) == Need::kWaiting) {
      cache_.Unwant(expert);
      if (queue_.state(expert) == TransferState::kMoving) {
        // The bytes that came are worth finishing, but nobody waits for them.
        queue_.Update(expert, TransferClass::kPrefetch, 0);
      }
    }
    NeedOf(expert) = Need::kNone;
  }
  CancelWaiting(now_ns);
  needed_.clear();
  missing_.clear();
  next_missing_ = 0;
  ready_.clear();
  waiting_ = 0;
  NoteReady(now_ns);
  layer_open_ = false;

  ExpertStats stats = std::exchange(stats_, {});
  const ExpertCacheCounters before = std::exchange(counters_before_, cache_.counters());
  const TransferCounters tried = std::exchange(transfers_before_, queue_.counters());
  stats.failed_reads = queue_.counters().packets_failed - tried.packets_failed;
  stats.given_up = queue_.counters().failed - tried.failed;
  stats.evictions = cache_.counters().evicted - before.evicted;
  stats.prefetched_used = cache_.counters().prefetched_used - before.prefetched_used;
  stats.prefetched_unused = cache_.counters().prefetched_unused - before.prefetched_unused;
  return stats;
}

// No more is waited for: what the link does until the next layer it does ahead.
void ExpertFlow::NoteReady(int64_t now_ns) {
  if (prefetch_ && waiting_ == 0) prefetch_->LayerReady(now_ns);
}

void ExpertFlow::LeaveOut(ExpertIndex expert) {
  NeedOf(expert) = Need::kOver;
  cache_.Unwant(expert);
  --waiting_;
}

void ExpertFlow::BeginPreload(std::span<const ExpertIndex> experts, int64_t now_ns) {
  CHECK(!layer_open_ && !preloading_);
  CHECK_EQ(cache_.loading(), 0);
  preloading_ = true;
  for (const ExpertIndex expert : experts) {
    if (cache_.free_slots() == 0) break;
    if (cache_.state(expert) != ExpertCache::State::kAbsent) continue;
    CHECK(cache_.Reserve(expert, LoadReason::kPreload, now_ns).has_value());
    queue_.Add(expert, CopyOf(expert).packets, TransferClass::kPrefetch, 0, now_ns);
  }
}

// --- what is loaded

// Gives slots to missing experts of the open layer, then to what later layers want, while there are
// any to be had.
bool ExpertFlow::StartMissing(int64_t now_ns) {
  const bool started = StartNeeded(now_ns);
  return StartExpected(now_ns) || started;
}

bool ExpertFlow::StartNeeded(int64_t now_ns) {
  if (!layer_open_ || !loads_started_) return false;
  bool started = false;
  while (next_missing_ < missing_.size()) {
    const ExpertIndex expert = missing_[next_missing_];
    const auto slot = cache_.Reserve(expert, LoadReason::kOnDemand, now_ns);
    if (!slot) {
      const size_t slots_needed = missing_.size() - next_missing_;
      CancelPrefetchesFor(slots_needed, now_ns);
      if (cache_.free_slots() == 0 && !YieldExpected(slots_needed)) break;
      continue;
    }
    queue_.Add(expert, CopyOf(expert).packets, TransferClass::kOnDemand, 0, now_ns);
    ++next_missing_;
    started = true;
    Log(FlowEvent::Kind::kLoad, expert, slot->evicted, now_ns);
  }
  return started;
}

bool ExpertFlow::StartExpected(int64_t now_ns) {
  if (preloading_) return false;
  if (layer_open_ && (!loads_started_ || next_missing_ < missing_.size())) return false;
  bool started = false;
  for (; next_expected_ < expected_.size(); ++next_expected_) {
    const ExpertIndex expert = expected_[next_expected_];
    if (ExpectationOf(expert) == 0 || cache_.state(expert) != ExpertCache::State::kAbsent) continue;
    const auto slot = cache_.Reserve(expert, LoadReason::kOnDemand, now_ns);
    if (!slot) break;
    queue_.Add(expert, CopyOf(expert).packets, TransferClass::kOnDemand, kExpectedPriority, now_ns);
    began_as_prefetch_[static_cast<size_t>(expert)] = 1;
    ++stats_.fetched_early;
    started = true;
    Log(FlowEvent::Kind::kPrefetch, expert, slot->evicted, now_ns);
  }
  return started;
}

// So many expected experts, the last first, keep their slots no better than others do. Whether
// there were any.
bool ExpertFlow::YieldExpected(size_t slots_needed) {
  bool yielded = false;
  for (auto expert = expected_.rbegin(); expert != expected_.rend() && slots_needed > 0; ++expert) {
    if (cache_.state(*expert) == ExpertCache::State::kAbsent || !StopExpecting(*expert)) continue;
    --slots_needed;
    yielded = true;
  }
  return yielded;
}

// Gives a slot to the expert that is best fetched ahead now. Called when no other packet may be
// issued.
bool ExpertFlow::StartPrefetch(int64_t now_ns) {
  if (!prefetch_ || !may_prefetch_ || preloading_) return false;
  if (layer_open_ && (!loads_started_ || next_missing_ < missing_.size())) return false;
  if (next_expected_ < expected_.size()) return false;
  if (queue_.size() >= MostTransfers()) return false;
  if (!MayPrefetch(ChangingSlots(), step_predictor_->shape().top_k)) return false;
  const auto next = prefetch_->Next(cache_, copy_ns_, now_ns);
  if (!next) return false;
  const auto slot = cache_.Reserve(next->expert, LoadReason::kPrefetch, now_ns);
  if (!slot) return false;
  queue_.Add(next->expert, CopyOf(next->expert).packets, TransferClass::kPrefetch,
             static_cast<float>(next->worth), now_ns);
  began_as_prefetch_[static_cast<size_t>(next->expert)] = 1;
  ++stats_.prefetched;
  Log(FlowEvent::Kind::kPrefetch, next->expert, slot->evicted, now_ns);
  return true;
}

// Transfers that a prefetch may be one of: lanes and slots stay free for what the next layer lacks.
int64_t ExpertFlow::MostTransfers() const {
  return std::max<int64_t>(1, std::min<int64_t>(lanes_ - 1, ChangingSlots() / 4));
}

bool ExpertFlow::BeingCopied(ExpertIndex expert) const {
  const TransferState state = queue_.state(expert);
  return state == TransferState::kWaiting || state == TransferState::kMoving;
}

// Being copied, and no layer waits for it.
bool ExpertFlow::IsPrefetch(ExpertIndex expert) const {
  return expert != kNoExpert && !cache_.wanted(expert) && BeingCopied(expert) &&
         queue_.kind(expert) == TransferClass::kPrefetch;
}

void ExpertFlow::Cancel(ExpertIndex expert, int64_t now_ns) {
  if (queue_.cancelling(expert)) return;
  Log(FlowEvent::Kind::kCancel, expert, queue_.packets_done(expert), now_ns);
  if (queue_.Cancel(expert) == TransferState::kCancelled) Forget(expert);
}

// The layer lacks that many slots: as many prefetches yield theirs, at once or when their packets
// in flight have come back.
void ExpertFlow::CancelPrefetchesFor(size_t slots_needed, int64_t now_ns) {
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (slots_needed == 0) return;
    if (!IsPrefetch(expert)) continue;
    Cancel(expert, now_ns);
    --slots_needed;
  }
}

void ExpertFlow::CancelStalePrefetches(int64_t now_ns) {
  if (queue_.size() == 0) return;
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (IsPrefetch(expert) && prefetch_->Stale(expert)) Cancel(expert, now_ns);
  }
}

void ExpertFlow::CancelWaiting(int64_t now_ns) {
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (expert == kNoExpert || queue_.state(expert) != TransferState::kWaiting) continue;
    if (ExpectationOf(expert) != 0) continue;
    Cancel(expert, now_ns);
  }
}

// --- the number of slots

void ExpertFlow::SetSlots(int64_t slots, int64_t now_ns) {
  const int64_t least = std::min(kept_ + 1, cache_.most_slots());
  CHECK_GE(slots, least);
  cache_.SetSlots(slots);
  StartMissing(now_ns);
  has_new_work_ = true;
}

std::optional<Flow::ClosedSlot> ExpertFlow::CloseSlot(int64_t now_ns) {
  const auto closed = cache_.CloseSlot(now_ns);
  if (!closed) return std::nullopt;
  return ClosedSlot{closed->slot, closed->to};
}

// --- the link

std::optional<Flow::Packet> ExpertFlow::NextPacket(int64_t now_ns) {
  const int64_t for_layers = queue_.packets_in_flight() - prefetch_packets_in_flight_;
  const bool layers_only = prefetch_.has_value() && !preloading_ &&
                           (for_layers > 0 || prefetch_packets_in_flight_ >= prefetch_depth_);
  auto next = queue_.NextPacket(now_ns, layers_only);
  if (!next && !layers_only && StartPrefetch(now_ns)) next = queue_.NextPacket(now_ns);
  if (!next) return std::nullopt;
  if (queue_.packets_in_flight() == 1) link_busy_since_ns_ = now_ns;
  const Packet packet{*next, queue_.kind(next->expert) == TransferClass::kPrefetch};
  if (packet.prefetch) ++prefetch_packets_in_flight_;
  Log(FlowEvent::Kind::kPacket, packet.expert, packet.packet, now_ns);
  return packet;
}

TransferState ExpertFlow::CompletePacket(const Packet& packet, PacketResult result,
                                         int64_t now_ns) {
  if (packet.prefetch) --prefetch_packets_in_flight_;
  link_busy_ns_ += now_ns - std::exchange(link_busy_since_ns_, now_ns);
  ++packets_moved_;
  const ExpertIndex expert = packet.expert;
  const TransferState state = queue_.CompletePacket(expert, packet.packet, result, now_ns);
  if (state == TransferState::kDone) {
    // Transfers overtake each other and share the link: its time per packet is what counts.
    MovingAverage(static_cast<double>(std::exchange(link_busy_ns_, 0)) * queue_.packets(expert) /
                      static_cast<double>(std::exchange(packets_moved_, 0)),
                  copy_ns_);
  }
  if (state == TransferState::kCancelled) {
    Forget(expert);
    // Its layer began after the cancellation and has not started its loads.
    if (NeedOf(expert) == Need::kWaiting) missing_.push_back(expert);
    StartMissing(now_ns);
  }
  return state;
}

void ExpertFlow::Commit(ExpertIndex expert, int64_t now_ns) {
  queue_.Remove(expert);
  cache_.Commit(expert, now_ns);
  if (!preloading_) stats_.bytes_read += CopyOf(expert).bytes;
  began_as_prefetch_[static_cast<size_t>(expert)] = 0;
  if (prefetch_) prefetch_->SetUnreadable(expert, false);
  if (NeedOf(expert) == Need::kWaiting) ready_.push_back(expert);
  Log(FlowEvent::Kind::kArrived, expert, 0, now_ns);
  StartMissing(now_ns);
}

Flow::Hurt ExpertFlow::Drop(ExpertIndex expert, int64_t now_ns) {
  const bool prefetched = began_as_prefetch_[static_cast<size_t>(expert)] != 0;
  Forget(expert);
  Log(FlowEvent::Kind::kFailed, expert, 0, now_ns);
  if (prefetch_) prefetch_->SetUnreadable(expert, true);
  Hurt hurt = preloading_ ? Hurt::kPreload : Hurt::kNobody;
  if (NeedOf(expert) == Need::kWaiting) {
    if (prefetched) {
      missing_.push_back(expert);  // a layer's own tries are still to come
    } else {
      LeaveOut(expert);
      NoteReady(now_ns);
      hurt = Hurt::kLayer;
    }
  }
  StartMissing(now_ns);
  return hurt;
}

std::vector<ResidentExpert> ExpertFlow::Residents(int64_t now_ns) const {
  std::vector<ResidentExpert> residents;
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (expert == kNoExpert || cache_.state(expert) != ExpertCache::State::kResident) continue;
    residents.push_back(
        {grid_.Id(expert), static_cast<float>(cache_.policy().KeepPriority(expert, now_ns))});
  }
  return residents;
}

// A transfer that is over and brought nothing.
void ExpertFlow::Forget(ExpertIndex expert) {
  if (!preloading_ && queue_.state(expert) == TransferState::kCancelled) {
    stats_.bytes_read += CopyOf(expert).bytes * static_cast<uint64_t>(queue_.packets_done(expert)) /
                         static_cast<uint64_t>(queue_.packets(expert));
  }
  queue_.Remove(expert);
  cache_.Abandon(expert);
  began_as_prefetch_[static_cast<size_t>(expert)] = 0;
}

}  // namespace moesaic
