// ExpertFlow: the flow of latency mode: which of the open layer's experts are there, which are
// fetched and in which order, what is fetched ahead, what leaves for it. It joins ExpertCache,
// TransferQueue and LinkPrefetch. The simulator runs the object that serves.
//
// Thread contract: none of its own; whoever owns the link (LinkMover, Simulator) guards it. What
// the StepPredictor predicted is taken over in StepBegan and BeginLayer, which are therefore called
// by the thread that predicts; nothing else touches it, so that links share no lock. No allocation
// after construction.
//
// A layer:
//   BeginLayer(needed)     counts; what is resident is ready
//   Missed, ComputeOnHost  (optional) what lacks, and what of it needs no copy
//   StartLoads             the missing rest gets slots, as far as there are any, and is queued
//   TakeReady, Release     until nothing is waiting: slots that are released serve the next wave
//   EndLayer
// What is kept is wanted for ever: it is loaded as others are, by Preload or when a layer needs it,
// and never leaves.
// Expect, at any time, names what a later layer will want for certain: its copies come after those
// of the open layer and before all that is only predicted, and who has arrived stays.
// The link, whenever it can take a packet: NextPacket, then CompletePacket, and Commit or Drop when
// that says so. A layer's packets go first; prefetches have a part of the packets in flight, start
// only when no packet of a layer is in flight, and yield their slots to a layer that lacks them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/expert_cache.h"
#include "cache/expert_grid.h"
#include "prefetch/link/expert_stats.h"
#include "prefetch/link/flow.h"
#include "prefetch/link/flow_log.h"
#include "prefetch/link/link_prefetch.h"
#include "prefetch/link/miss_planner.h"

namespace moesaic {

// Fewer slots than that are left to the running layer: a token's experts must find room beside what
// is fetched ahead.
constexpr bool MayPrefetch(int64_t slots, int64_t top_k) { return slots >= 2 * top_k; }

struct ExpertFlowOptions {
  int32_t link = 0;     // its number, for MissedExpert
  int64_t copy_ns = 0;  // of one expert, until it is measured; 0: not known
  // Null: nothing is fetched ahead. Must outlive the flow.
  const StepPredictor* step_predictor = nullptr;
  FlowLog* log = nullptr;  // may be null; must outlive the flow
  // Who else reads the slots; may be null, must outlive the flow.
  SlotReaders* readers = nullptr;
  // Experts of this link that stay once they are there; fewer than slots, unless nothing else comes
  // over it. Looked at while it is constructed.
  std::span<const ExpertIndex> kept = {};
};

class ExpertFlow final : public Flow {
 public:
  // A null policy evicts what the step predictor finds worth least or, when nothing is fetched
  // ahead, the least recently used.
  ExpertFlow(const ExpertGrid& grid, LinkParameters link, std::unique_ptr<EvictionPolicy> policy,
             const ExpertFlowOptions& options);

  // --- the consumer
  // What was predicted for the step is taken over.
  void StepBegan(int64_t now_ns) override;
  // Nothing is expected any more, either.
  void StopPrefetching(int64_t now_ns) override;

  // That they are of one layer nothing here minds. What a step on the device has found of them in
  // the table is resident.
  void BeginLayer(std::span<const ExpertIndex> needed, int64_t now_ns) override;
  // Appends those that are not resident, with what is left of their copies.
  void Missed(std::vector<MissedExpert>& out) const;
  // Takes an expert out of what the layer waits for; a copy on its way goes on as a prefetch. False
  // when it has become resident: it stays. Between BeginLayer and StartLoads.
  bool ComputeOnHost(ExpertIndex expert, int64_t now_ns);
  void StartLoads(int64_t now_ns) override;
  void TakeReady(std::vector<ExpertIndex>& out, int64_t now_ns) override;
  bool ready() const override { return !ready_.empty(); }
  int64_t waiting() const override { return waiting_; }  // nor on the host
  bool WaitsFor(ExpertIndex expert) const override {
    return need_[static_cast<size_t>(expert)] == Need::kWaiting;
  }
  bool MakesProgress() override { return cache_.loading() > 0; }
  void Release(ExpertIndex expert, int64_t now_ns) override;
  // What later layers will want, in place of what was expected before: what is missing of it is
  // fetched in this order, behind what the open layer waits for, as slots can be had; what is there
  // stays, experts of the open layer included. A layer that cannot get slots otherwise takes them
  // from here, the last ones first.
  void Expect(std::span<const ExpertIndex> experts, int64_t now_ns);
  void GiveUpLayer() override { next_missing_ = missing_.size(); }
  ExpertStats EndLayer(int64_t now_ns) override;
  bool HasNewWork() override { return std::exchange(has_new_work_, false) || closing(); }

  // --- a warm start; no layer is open and nothing loads
  // Queues absent experts in this order while slots are free. Until EndPreload nothing else starts.
  void BeginPreload(std::span<const ExpertIndex> experts, int64_t now_ns);
  void EndPreload() { preloading_ = false; }
  // Drops the loads of which nothing was read.
  void CancelWaiting(int64_t now_ns);
  // Makes residents that nobody uses absent. Not counted as evictions.
  void Evict(ExpertIndex expert, int64_t now_ns) { cache_.Release(expert, now_ns); }
  void EvictAll(int64_t now_ns) { cache_.Drop(now_ns); }

  // --- the link
  // May start a prefetch.
  std::optional<Packet> NextPacket(int64_t now_ns) override;
  TransferState CompletePacket(const Packet& packet, PacketResult result, int64_t now_ns) override;
  void Commit(ExpertIndex expert, int64_t now_ns) override;
  // A layer that waits for what a prefetch began tries again by itself: nobody is hurt.
  Hurt Drop(ExpertIndex expert, int64_t now_ns) override;

  // --- the number of slots (ExpertCache::SetSlots)
  void SetSlots(int64_t slots, int64_t now_ns);
  bool closing() const override { return cache_.closing(); }
  std::optional<ClosedSlot> CloseSlot(int64_t now_ns) override;

  int64_t slots() const override { return cache_.num_slots(); }
  int64_t most_slots() const override { return cache_.most_slots(); }
  int64_t free_slots() const override { return cache_.free_slots(); }
  int64_t slot(ExpertIndex expert) const override { return cache_.slot(expert); }
  int64_t present() const override { return cache_.resident(); }
  std::vector<ResidentExpert> Residents(int64_t now_ns) const override;

  int32_t link() const { return link_; }
  const ExpertCache& cache() const { return cache_; }
  bool prefetching() const { return prefetch_.has_value(); }
  int64_t kept() const { return kept_; }
  // [experts] layers that have used each since the start, modulo 2^32.
  std::span<const uint32_t> uses() const { return uses_; }

 private:
  // What the open layer has had of an expert.
  enum class Need : uint8_t { kNone, kWaiting, kPinned, kOver };

  Need& NeedOf(ExpertIndex expert) { return need_[static_cast<size_t>(expert)]; }
  uint8_t& ExpectationOf(ExpertIndex expert) { return expectation_[static_cast<size_t>(expert)]; }
  bool BeingCopied(ExpertIndex expert) const;
  int64_t ChangingSlots() const { return cache_.usable_slots() - kept_; }
  int64_t MostTransfers() const;
  void NoteReady(int64_t now_ns);
  void LeaveOut(ExpertIndex expert);
  bool StartMissing(int64_t now_ns);
  bool StartNeeded(int64_t now_ns);
  bool StartExpected(int64_t now_ns);
  bool StopExpecting(ExpertIndex expert);
  bool YieldExpected(size_t slots_needed);
  bool StartPrefetch(int64_t now_ns);
  bool IsPrefetch(ExpertIndex expert) const;
  void Cancel(ExpertIndex expert, int64_t now_ns);
  void CancelPrefetchesFor(size_t slots_needed, int64_t now_ns);
  void CancelStalePrefetches(int64_t now_ns);
  void Forget(ExpertIndex expert);
  void Log(FlowEvent::Kind kind, ExpertIndex expert, int64_t detail, int64_t now_ns) {
    if (log_ != nullptr) log_->OnDecision({now_ns, kind, expert, detail});
  }

  const ExpertGrid grid_;
  SlotReaders* const readers_;
  const int32_t link_;
  const int prefetch_depth_;  // packets of prefetches in flight at most
  const int lanes_;
  const int64_t kept_;  // experts that stay once they are there
  const StepPredictor* const step_predictor_;
  FlowLog* const log_;
  double copy_ns_;  // moving average of one expert's copy with the link to itself; 0: not known
  std::optional<LinkPrefetch> prefetch_;  // before the cache, whose policy looks at its worth
  ExpertCache cache_;

  // The open layer.
  bool layer_open_ = false;
  bool loads_started_ = false;
  std::vector<ExpertIndex> needed_;
  std::vector<ExpertIndex> missing_;  // of needed_, in its order
  size_t next_missing_ = 0;           // the first whose load was not started
  std::vector<ExpertIndex> ready_;    // resident and not handed out
  std::vector<Need> need_;            // [experts]
  std::vector<uint32_t> uses_;        // [experts]
  int64_t waiting_ = 0;

  // What later layers want; entries whose expectation_ is 0 are out of it.
  std::vector<ExpertIndex> expected_;
  size_t next_expected_ = 0;          // the first whose load was not started
  std::vector<uint8_t> expectation_;  // [experts] 1: expected, and wanted in the cache

  bool may_prefetch_ = false;               // something was predicted for requests that run
  std::vector<uint8_t> began_as_prefetch_;  // [experts] while it loads: no layer asked for it yet
  bool preloading_ = false;
  int64_t prefetch_packets_in_flight_ = 0;
  bool has_new_work_ = false;

  // Since the last copy that arrived.
  int64_t link_busy_ns_ = 0;
  int64_t link_busy_since_ns_ = 0;
  int64_t packets_moved_ = 0;

  // Since the last EndLayer.
  ExpertStats stats_;
  ExpertCacheCounters counters_before_;
  TransferCounters transfers_before_;
};

}  // namespace moesaic
