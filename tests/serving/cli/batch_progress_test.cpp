// What a running batch job shows.
#include "serving/cli/batch_progress.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

BatchProgress SomeProgress() {
  BatchProgress progress;
  progress.lines = 100;
  progress.resumed = 20;
  progress.output_tokens = 500;
  progress.seconds = 10;
  return progress;
}

TEST(BatchProgressTest, PassesSayHowMuchIsDoneBeforeAnyLineHasEnded) {
  StepStats stats;
  stats.steps = 5;
  EXPECT_DOUBLE_EQ(DoneShare(SomeProgress(), stats, 20), 0.25);
  const std::string text = ProgressText(SomeProgress(), stats, 20);
  EXPECT_EQ(text.find("[#####---------------] 20 of 100  50.0 tok/s  30.0 s left"), 0u) << text;
}

TEST(BatchProgressTest, LinesSayItWithoutAPlanAndBeyondIt) {
  BatchProgress progress = SomeProgress();
  StepStats stats;
  stats.steps = 5;
  EXPECT_EQ(DoneShare(progress, stats, 0), 0);
  EXPECT_EQ(ProgressText(progress, stats, 0).find("left"), std::string::npos);
  progress.done = 35;
  progress.refused = 4;
  progress.failed = 1;
  EXPECT_DOUBLE_EQ(DoneShare(progress, stats, 0), 0.5);
  EXPECT_DOUBLE_EQ(DoneShare(progress, stats, 5), 0.5);
  EXPECT_NE(ProgressText(progress, stats, 5).find("10.0 s left"), std::string::npos);
  progress.draining = true;
  progress.outstanding = 3;
  EXPECT_NE(ProgressText(progress, stats, 5).find("stopping: 3 to finish"), std::string::npos);
  progress.done += progress.left();
  EXPECT_EQ(DoneShare(progress, stats, 1000), 1);
}

}  // namespace
}  // namespace moesaic
