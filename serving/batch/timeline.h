// Timeline: what the computing threads and the links did when, for the report of a batch job and
// for tests. Sums of everything, and the first so many intervals one by one.
//
// Thread contract: any thread. Times are of the steady clock, in nanoseconds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/mutex.h"

namespace moesaic {

enum class Activity : uint8_t {
  // A computing thread: that of the CPU pool (lane 0), or of a device (lane 1, 2, ...)
  kDense,       // norms, projections, router, shared experts, dense layers
  kAttention,   // rotation, keys and values into the cache, attention
  kExperts,     // routed experts
  kHead,        // logits and sampling
  kStallRead,   // waits for an expert that is being read
  kStallQueue,  // waits for an expert whose read has not begun: others are read first
  kStallPack,   // waits for an expert whose bytes are there and are being packed
  kWakeUp,      // what it waited for is there; it has yet to notice
  kBetween,     // between passes: scheduling, delivering
  // A link: the disk's (lane 0), or a device's
  kRead,       // an expert, from its first packet to its last; several at a time
  kLinkBusy,   // at least one packet is being read
  kPack,       // bytes into a blob, by the mover's thread
  kLinkIdle,   // nothing to read: from then until there was something again
  kHiddenOut,  // queries, keys and values from a device to the host: from when they were wanted
  kHiddenIn,   // attention outputs to a device, likewise
  kCount
};
const char* ActivityName(Activity activity);

struct TimelineInterval {
  Activity activity = Activity::kDense;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int32_t layer = -1;  // -1: none
  // Of the layer; of kExperts, how many were computed; of kLinkIdle, how many buffers were free.
  int32_t expert = -1;
  uint64_t bytes = 0;
  int16_t lane = 0;
};

struct ActivitySum {
  int64_t count = 0;
  int64_t ns = 0;
  uint64_t bytes = 0;
};

class Timeline {
 public:
  // Keeps the first `max_intervals`; all of them count for the sums.
  explicit Timeline(size_t max_intervals);

  void Add(const TimelineInterval& interval) EXCLUDES(mutex_);

  struct Snapshot {
    std::array<ActivitySum, static_cast<size_t>(Activity::kCount)> sums;
    std::vector<TimelineInterval> intervals;
    int64_t left_out = 0;  // intervals that were not kept

    const ActivitySum& sum(Activity activity) const { return sums[static_cast<size_t>(activity)]; }
  };
  Snapshot Take() const EXCLUDES(mutex_);

 private:
  const size_t max_intervals_;
  mutable Mutex mutex_;
  Snapshot data_ GUARDED_BY(mutex_);
};

// How long computing threads waited for experts (that were not being packed) while their link had
// rested, between two times at which it was busy, for at least `page_ns` on end: time in which it
// could have read one. Of the kept intervals; nanoseconds.
int64_t WaitedBesideRestingLink(const Timeline::Snapshot& timeline, int64_t page_ns);

}  // namespace moesaic
