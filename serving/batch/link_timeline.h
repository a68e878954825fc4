// LinkTimeline: draws what a link and who computes with its experts do into a Timeline: the
// consumer's lane (computing, waiting and for what, waking up) and the link's (reading, packing,
// resting).
//
// Owned by a LinkMover. Thread contract: as LinkObserver's; the consumer's thread also calls
// ComputeBegan and ComputeEnded.
#pragma once

#include <cstdint>

#include "core/base/clock.h"
#include "prefetch/link/link_observer.h"
#include "serving/batch/timeline.h"

namespace moesaic {

class LinkTimeline final : public LinkObserver {
 public:
  // lane: the consumer's and the link's number. `timeline` may be null and must outlive it.
  LinkTimeline(Timeline* timeline, int16_t lane, uint64_t expert_bytes)
      : timeline_(timeline),
        lane_(lane),
        expert_bytes_(expert_bytes),
        link_since_ns_(clock_.NowNs()) {}

  // From ComputeBegan on the consumer's thread computes, also outside of layers; up to ComputeEnded
  // it has done this.
  void ComputeBegan();
  void ComputeEnded(Activity activity, int32_t layer);

  void OnBeginLayer(int layer, int64_t now_ns) override;
  void OnHandOut(int64_t experts, int64_t now_ns) override;
  void OnWaited(WaitCause cause, int64_t begin_ns, int64_t there_ns, int64_t end_ns) override;
  void OnEndLayer(int64_t now_ns) override;
  void OnChange(bool work, int64_t free_slots, int64_t now_ns) override;
  void OnPacket(uint64_t bytes) override { link_bytes_ += bytes; }
  void OnLink(LinkState state, int64_t free_slots, int64_t now_ns) override;
  void OnRead(ExpertId id, int64_t begin_ns, int64_t end_ns) override;
  void OnPacked(ExpertId id, int64_t begin_ns, int64_t end_ns) override;

 private:
  void Add(TimelineInterval interval);
  void Mark(Activity activity, int32_t layer, int64_t now_ns, int32_t experts = -1);
  void MarkExperts(int64_t now_ns);
  void EndIdle(int64_t now_ns);
  void EndBusy(int64_t now_ns);

  Timeline* const timeline_;
  const int16_t lane_;
  const uint64_t expert_bytes_;
  const SteadyClock clock_;

  // The consumer: what it does began at mark_ns_.
  int64_t mark_ns_ = 0;
  bool computing_ = false;
  int32_t layer_ = -1;
  int32_t handed_out_ = 0;  // experts that it computes now

  // The link: busy or idle since when.
  bool busy_ = false;
  bool idle_ = false;
  int32_t idle_slots_ = 0;  // free, while it is idle: the most
  int64_t link_since_ns_;
  uint64_t link_bytes_ = 0;
};

}  // namespace moesaic
