#include "serving/batch/link_timeline.h"

#include <algorithm>
#include <utility>

namespace moesaic {

void LinkTimeline::Add(TimelineInterval interval) {
  interval.lane = lane_;
  if (timeline_ != nullptr) timeline_->Add(interval);
}

// Ends what the consumer has done since mark_ns_.
void LinkTimeline::Mark(Activity activity, int32_t layer, int64_t now_ns, int32_t experts) {
  Add({activity, std::exchange(mark_ns_, now_ns), now_ns, layer, experts, 0});
}

void LinkTimeline::MarkExperts(int64_t now_ns) {
  if (handed_out_ > 0) Mark(Activity::kExperts, layer_, now_ns, std::exchange(handed_out_, 0));
}

void LinkTimeline::ComputeBegan() {
  computing_ = true;
  mark_ns_ = clock_.NowNs();
}

void LinkTimeline::ComputeEnded(Activity activity, int32_t layer) {
  Mark(activity, layer, clock_.NowNs());
  computing_ = false;
}

void LinkTimeline::OnBeginLayer(int layer, int64_t now_ns) {
  layer_ = layer;
  handed_out_ = 0;
  if (computing_) Mark(Activity::kDense, layer_, now_ns);
  mark_ns_ = now_ns;
}

// The consumer computes, be it on a device, until it asks for more and gets it or waits.
void LinkTimeline::OnHandOut(int64_t experts, int64_t now_ns) {
  MarkExperts(now_ns);
  handed_out_ = static_cast<int32_t>(experts);
}

void LinkTimeline::OnWaited(WaitCause cause, int64_t begin_ns, int64_t there_ns, int64_t end_ns) {
  constexpr Activity kStallOf[] = {Activity::kStallPack, Activity::kStallRead,
                                   Activity::kStallQueue};  // by cause
  MarkExperts(begin_ns);
  Add({kStallOf[static_cast<size_t>(cause)], begin_ns, there_ns, layer_, -1, 0});
  Add({Activity::kWakeUp, there_ns, end_ns, layer_, -1, 0});
  mark_ns_ = end_ns;
}

// A link that never rests is noted layer by layer.
void LinkTimeline::OnEndLayer(int64_t now_ns) {
  MarkExperts(now_ns);
  if (busy_) EndBusy(now_ns);
  mark_ns_ = now_ns;
}

// The idle time of a link that could move something ends here, not when its thread has woken up.
void LinkTimeline::OnChange(bool work, int64_t free_slots, int64_t now_ns) {
  if (!idle_) return;
  if (work) {
    EndIdle(now_ns);
  } else {
    idle_slots_ = std::max(idle_slots_, static_cast<int32_t>(free_slots));
  }
}

// Keeps the intervals in which the link was busy, and those in which there was nothing for it.
void LinkTimeline::OnLink(LinkState state, int64_t free_slots, int64_t now_ns) {
  const bool busy = state == LinkState::kMoving;
  if (busy_ && !busy) EndBusy(now_ns);
  if (state == LinkState::kIdle && !idle_) {
    idle_ = true;
    idle_slots_ = static_cast<int32_t>(free_slots);
    link_since_ns_ = now_ns;
  }
  if (busy && !busy_) {
    if (idle_) EndIdle(now_ns);
    link_since_ns_ = now_ns;
  }
  busy_ = busy;
}

void LinkTimeline::EndIdle(int64_t now_ns) {
  Add({Activity::kLinkIdle, link_since_ns_, now_ns, -1, idle_slots_, 0});
  idle_ = false;
}

void LinkTimeline::EndBusy(int64_t now_ns) {
  Add({Activity::kLinkBusy, link_since_ns_, now_ns, -1, -1, std::exchange(link_bytes_, 0)});
  link_since_ns_ = now_ns;
}

void LinkTimeline::OnRead(ExpertId id, int64_t begin_ns, int64_t end_ns) {
  Add({Activity::kRead, begin_ns, end_ns, id.layer, id.index, expert_bytes_});
}

void LinkTimeline::OnPacked(ExpertId id, int64_t begin_ns, int64_t end_ns) {
  Add({Activity::kPack, begin_ns, end_ns, id.layer, id.index, expert_bytes_});
}

}  // namespace moesaic
