// What must hold of every timeline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "serving/batch/timeline.h"

namespace moesaic {

inline bool IsStall(Activity activity) {
  return activity == Activity::kStallRead || activity == Activity::kStallQueue ||
         activity == Activity::kStallPack;
}

// A link is idle (in the timeline) while it has nothing that it could read into a buffer. So its
// lane's computing thread never waits for an expert while a buffer is free and the link idle, if no
// stall and no idle interval have a moment in common.
inline void ExpectNoStallWhileIdle(const Timeline::Snapshot& timeline) {
  ASSERT_EQ(timeline.left_out, 0);
  for (const TimelineInterval& stall : timeline.intervals) {
    if (!IsStall(stall.activity)) continue;
    for (const TimelineInterval& idle : timeline.intervals) {
      if (idle.activity != Activity::kLinkIdle || idle.lane != stall.lane) continue;
      EXPECT_LE(std::min(stall.end_ns, idle.end_ns), std::max(stall.begin_ns, idle.begin_ns))
          << ActivityName(stall.activity) << " in layer " << stall.layer;
    }
  }
}

// As long as passes use every expert, the link has nothing to read only when no buffer is free: so
// it never idles for the time of a read that would have spared a later task its wait.
inline void ExpectNoFreeBufferWhileIdle(const Timeline::Snapshot& timeline, int64_t begin_ns,
                                        int64_t end_ns) {
  for (const TimelineInterval& idle : timeline.intervals) {
    if (idle.activity != Activity::kLinkIdle || idle.begin_ns < begin_ns || idle.end_ns > end_ns) {
      continue;
    }
    EXPECT_EQ(idle.expert, 0) << "buffers were free for " << idle.end_ns - idle.begin_ns << " ns";
  }
}

// A computing thread does one thing at a time.
inline void ExpectComputeLaneInOrder(const Timeline::Snapshot& timeline) {
  std::map<int16_t, std::vector<TimelineInterval>> lanes;
  for (const TimelineInterval& interval : timeline.intervals) {
    if (interval.activity <= Activity::kBetween) lanes[interval.lane].push_back(interval);
  }
  for (auto& [number, lane] : lanes) {
    std::stable_sort(lane.begin(), lane.end(),
                     [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
    for (size_t i = 1; i < lane.size(); ++i) {
      EXPECT_LE(lane[i - 1].end_ns, lane[i].begin_ns)
          << ActivityName(lane[i].activity) << " of lane " << number;
    }
  }
}

}  // namespace moesaic
