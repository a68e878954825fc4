#include "serving/batch/timeline.h"

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

}  // namespace moesaic
