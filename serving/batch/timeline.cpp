#include "serving/batch/timeline.h"

#include <algorithm>
#include <map>

#include "core/base/check.h"

namespace moesaic {

const char* ActivityName(Activity activity) {
  switch (activity) {
    case Activity::kDense:
      return "dense";
    case Activity::kAttention:
      return "attention";
    case Activity::kExperts:
      return "experts";
    case Activity::kHead:
      return "head";
    case Activity::kStallRead:
      return "stall_read";
    case Activity::kStallQueue:
      return "stall_queue";
    case Activity::kStallPack:
      return "stall_pack";
    case Activity::kWakeUp:
      return "wake_up";
    case Activity::kBetween:
      return "between_passes";
    case Activity::kRead:
      return "read";
    case Activity::kLinkBusy:
      return "link_busy";
    case Activity::kPack:
      return "pack";
    case Activity::kLinkIdle:
      return "link_idle";
    case Activity::kHiddenOut:
      return "hidden_out";
    case Activity::kHiddenIn:
      return "hidden_in";
    case Activity::kCount:
      break;
  }
  return "unknown";
}

Timeline::Timeline(size_t max_intervals) : max_intervals_(max_intervals) {
  const MutexLock lock(mutex_);
  data_.intervals.reserve(max_intervals);
}

void Timeline::Add(const TimelineInterval& interval) {
  CHECK_LE(interval.begin_ns, interval.end_ns);
  const MutexLock lock(mutex_);
  ActivitySum& sum = data_.sums[static_cast<size_t>(interval.activity)];
  ++sum.count;
  sum.ns += interval.end_ns - interval.begin_ns;
  sum.bytes += interval.bytes;
  if (data_.intervals.size() < max_intervals_) {
    data_.intervals.push_back(interval);
  } else {
    ++data_.left_out;
  }
}

Timeline::Snapshot Timeline::Take() const {
  const MutexLock lock(mutex_);
  return data_;
}

int64_t WaitedBesideRestingLink(const Timeline::Snapshot& timeline, int64_t page_ns) {
  struct Lane {
    std::vector<TimelineInterval> busy, waits;
  };
  std::map<int16_t, Lane> lanes;
  for (const TimelineInterval& interval : timeline.intervals) {
    if (interval.activity == Activity::kLinkBusy) lanes[interval.lane].busy.push_back(interval);
    if (interval.activity == Activity::kStallRead || interval.activity == Activity::kStallQueue) {
      lanes[interval.lane].waits.push_back(interval);
    }
  }
  int64_t waited_ns = 0;
  for (auto& [number, lane] : lanes) {
    for (auto* intervals : {&lane.busy, &lane.waits}) {
      std::sort(intervals->begin(), intervals->end(),
                [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
    }
    auto wait = lane.waits.begin();
    for (size_t i = 1; i < lane.busy.size(); ++i) {
      const int64_t begin_ns = lane.busy[i - 1].end_ns;
      const int64_t end_ns = lane.busy[i].begin_ns;
      if (end_ns - begin_ns < page_ns) continue;
      while (wait != lane.waits.end() && wait->end_ns <= begin_ns) ++wait;
      for (auto other = wait; other != lane.waits.end() && other->begin_ns < end_ns; ++other) {
        waited_ns += std::min(other->end_ns, end_ns) - std::max(other->begin_ns, begin_ns);
      }
    }
  }
  return waited_ns;
}

}  // namespace moesaic
