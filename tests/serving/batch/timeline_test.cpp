// What is read out of a timeline.
#include "serving/batch/timeline.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(TimelineTest, WaitsCountWhileTheirLinkCouldHaveRead) {
  Timeline timeline(100);
  const auto add = [&](Activity activity, int64_t begin_ns, int64_t end_ns, int16_t lane = 0) {
    timeline.Add({activity, begin_ns, end_ns, -1, -1, 0, lane});
  };
  // Out of order, as threads add them. Rests of 40, 30 and 5.
  add(Activity::kLinkBusy, 140, 200);
  add(Activity::kLinkBusy, 0, 100);
  add(Activity::kLinkBusy, 230, 300);
  add(Activity::kLinkBusy, 305, 400);
  add(Activity::kStallRead, 90, 110);    // 10 of it beside the first rest
  add(Activity::kStallQueue, 130, 160);  // 10
  add(Activity::kStallPack, 110, 130);   // its expert has been read
  add(Activity::kExperts, 200, 230);
  add(Activity::kStallRead, 300, 305);     // too short a rest
  add(Activity::kStallRead, 390, 500);     // nothing follows: the end of the job
  add(Activity::kStallRead, 100, 140, 1);  // another link's
  EXPECT_EQ(WaitedBesideRestingLink(timeline.Take(), 10), 20);
  EXPECT_EQ(WaitedBesideRestingLink(timeline.Take(), 5), 25);
  EXPECT_EQ(WaitedBesideRestingLink(timeline.Take(), 41), 0);
}

}  // namespace
}  // namespace moesaic
