// StreamFlow where something does not come to its end: experts that arrive when nobody wants them
// any more, layers that are given up, passes that are cut off, reads that fail.

#include <gtest/gtest.h>

#include <vector>

#include "prefetch/link/stream_flow.h"

namespace moesaic {
namespace {

// Three layers of four experts, numbered through; all of them stream.
class StreamFlowCutTest : public testing::Test {
 protected:
  using State = StreamFlow::State;

  static StreamFlow WithBuffers(int64_t buffers) {
    StreamFlow flow(ExpertGrid(3, 4), SparseLayers(3), buffers, buffers, 100);
    flow.AllowReadAhead(true);
    return flow;
  }
  static std::vector<ExpertIndex> LoadAllOf(StreamFlow& flow) {
    std::vector<ExpertIndex> loaded;
    while (const auto expert = flow.NextLoad()) {
      loaded.push_back(*expert);
      flow.Loaded(*expert, 1);
      if (loaded.size() > 100) {
        ADD_FAILURE() << "expert " << *expert << " is read again and again";
        break;
      }
    }
    return loaded;
  }
  // A visit that computes all.
  static ExpertStats Visit(StreamFlow& flow, const std::vector<ExpertIndex>& experts) {
    flow.BeginLayer(experts, 0);
    while (flow.waiting() > 0) {
      LoadAllOf(flow);
      std::vector<ExpertIndex> taken;
      flow.TakeReady(taken, 0);
      for (const ExpertIndex expert : taken) flow.Release(expert, 0);
      if (taken.empty()) {
        ADD_FAILURE() << "nothing comes any more";
        break;
      }
    }
    return flow.EndLayer(0);
  }
};

TEST_F(StreamFlowCutTest, WhatArrivesUnwantedLeavesAtOnce) {
  StreamFlow flow = WithBuffers(3);
  flow.BeginPass(1);
  ASSERT_EQ(flow.NextLoad(), 0);
  ASSERT_EQ(flow.NextLoad(), 1);
  flow.AllowReadAhead(false);
  flow.BeginLayer(std::vector<ExpertIndex>{1}, 0);
  flow.Loaded(0, 10);  // the layer does not use it
  EXPECT_EQ(flow.state(0), State::kAbsent);
  EXPECT_EQ(flow.slot(0), -1);
  EXPECT_EQ(flow.free_slots(), 2);
  EXPECT_EQ(flow.present(), 0);
  flow.Loaded(1, 10);
  EXPECT_EQ(flow.state(1), State::kReady);
  const ExpertStats stats = flow.EndLayer(0);
  EXPECT_EQ(stats.bytes_read, 20u);
  EXPECT_EQ(stats.prefetched, 2u);
  EXPECT_EQ(stats.prefetched_used, 1u);
  EXPECT_EQ(stats.prefetched_unused, 1u);
  EXPECT_EQ(stats.late_hits, 1u);
}

TEST_F(StreamFlowCutTest, WhatWasUnwantedOnceIsReadAheadAgain) {
  StreamFlow flow = WithBuffers(4);
  flow.BeginPass(1);
  ASSERT_EQ(flow.NextLoad(), 0);
  Visit(flow, {1});
  flow.Loaded(0, 1);
  ASSERT_EQ(flow.state(0), State::kAbsent);
  Visit(flow, {4});
  Visit(flow, {8});
  flow.BeginPass(1);
  Visit(flow, {0, 1});  // wanted after all
  Visit(flow, {4});
  Visit(flow, {8});
  LoadAllOf(flow);
  EXPECT_EQ(flow.state(0), State::kReady);
  EXPECT_EQ(flow.state(1), State::kReady);
}

TEST_F(StreamFlowCutTest, WantedAgainBeforeItArrives) {
  StreamFlow flow = WithBuffers(4);
  flow.BeginPass(1);
  ASSERT_EQ(flow.NextLoad(), 0);
  Visit(flow, {1});  // 0 is unwanted now
  flow.BeginPass(1);
  flow.BeginLayer(std::vector<ExpertIndex>{0}, 0);
  flow.Loaded(0, 1);
  EXPECT_TRUE(flow.ready());
  std::vector<ExpertIndex> taken;
  flow.TakeReady(taken, 0);
  EXPECT_EQ(taken, std::vector<ExpertIndex>{0});
  flow.Release(0, 0);
  EXPECT_EQ(flow.EndLayer(0).late_hits, 1u);
}

// There, on its way, held or not begun: nothing of a layer that was given up stays.
TEST_F(StreamFlowCutTest, AGivenUpLayerLeavesNothing) {
  StreamFlow flow = WithBuffers(3);
  flow.AllowReadAhead(false);
  flow.BeginPass(1);
  flow.BeginLayer(std::vector<ExpertIndex>{0, 1, 2, 3}, 0);
  ASSERT_EQ(flow.NextLoad(), 0);
  flow.Loaded(0, 1);
  std::vector<ExpertIndex> taken;
  flow.TakeReady(taken, 0);
  ASSERT_EQ(taken, std::vector<ExpertIndex>{0});
  ASSERT_EQ(flow.NextLoad(), 1);
  flow.Loaded(1, 1);
  ASSERT_EQ(flow.NextLoad(), 2);
  flow.EndLayer(0);
  EXPECT_EQ(flow.state(0), State::kAbsent);
  EXPECT_EQ(flow.state(1), State::kAbsent);
  EXPECT_EQ(flow.waiting(), 0);
  EXPECT_FALSE(flow.ready());
  EXPECT_FALSE(flow.CanLoad());
  flow.Loaded(2, 1);
  EXPECT_EQ(flow.state(2), State::kAbsent);
  EXPECT_EQ(flow.free_slots(), 3);
  EXPECT_EQ(flow.present(), 0);
}

// A pass that ends before the last visit of a layer: the buffers are free for the next pass, which
// expects of the layer what was used.
TEST_F(StreamFlowCutTest, ACutOffPassFreesItsBuffers) {
  StreamFlow flow = WithBuffers(2);
  flow.AllowReadAhead(false);
  flow.BeginPass(3);
  Visit(flow, {0, 2});
  ASSERT_EQ(flow.state(0), State::kReady);  // for the visits that follow
  ASSERT_EQ(flow.state(2), State::kReady);
  flow.BeginPass(1);
  EXPECT_EQ(flow.state(0), State::kAbsent);
  EXPECT_EQ(flow.state(2), State::kAbsent);
  EXPECT_EQ(flow.free_slots(), 2);
  Visit(flow, {4});
  Visit(flow, {8});
  flow.AllowReadAhead(true);
  EXPECT_EQ(LoadAllOf(flow), (std::vector<ExpertIndex>{0, 2}));
}

TEST_F(StreamFlowCutTest, ACutOffPassDoesNotWantWhatIsOnItsWay) {
  StreamFlow flow = WithBuffers(2);
  flow.BeginPass(2);
  ASSERT_EQ(flow.NextLoad(), 0);
  flow.AllowReadAhead(false);
  Visit(flow, {1});
  flow.BeginPass(1);
  flow.Loaded(0, 1);
  EXPECT_EQ(flow.state(0), State::kAbsent);
  EXPECT_EQ(flow.free_slots(), 2);
}

// A layer whose later visits never come: the next one begins, and has all buffers.
TEST_F(StreamFlowCutTest, ACutOffLayerFreesItsBuffers) {
  StreamFlow flow = WithBuffers(2);
  flow.AllowReadAhead(false);
  flow.BeginPass(3);
  Visit(flow, {0, 2});
  flow.BeginLayer(std::vector<ExpertIndex>{5}, 0);
  EXPECT_EQ(flow.state(0), State::kAbsent);
  EXPECT_EQ(flow.state(2), State::kAbsent);
  EXPECT_EQ(flow.free_slots(), 2);
  EXPECT_EQ(flow.NextLoad(), 5);
  flow.Loaded(5, 1);
  flow.EndLayer(0);
}

// What an earlier pass used and the last one did not is not read ahead.
TEST_F(StreamFlowCutTest, TheLastPassSaysWhatIsExpected) {
  StreamFlow flow = WithBuffers(4);
  flow.AllowReadAhead(false);
  for (const std::vector<ExpertIndex>& used :
       {std::vector<ExpertIndex>{0, 1, 2, 3}, std::vector<ExpertIndex>{2}}) {
    flow.BeginPass(2);
    Visit(flow, used);
    Visit(flow, {used.front()});
    for (const ExpertIndex other : {4, 8}) {
      Visit(flow, {other});
      Visit(flow, {other});
    }
  }
  flow.AllowReadAhead(true);
  EXPECT_EQ(LoadAllOf(flow), (std::vector<ExpertIndex>{2, 4, 8}));
}

// Between two visits the layer itself comes first.
TEST_F(StreamFlowCutTest, ReadsAheadForTheNextVisit) {
  StreamFlow flow = WithBuffers(4);
  flow.AllowReadAhead(false);
  flow.BeginPass(2);
  Visit(flow, {0});
  flow.AllowReadAhead(true);
  EXPECT_EQ(LoadAllOf(flow), (std::vector<ExpertIndex>{1, 2, 3}));
}

// What the open layer waits for makes no room for another that it needs.
TEST_F(StreamFlowCutTest, WhatIsNeededIsNoVictim) {
  StreamFlow flow = WithBuffers(1);
  flow.BeginPass(1);
  flow.BeginLayer(std::vector<ExpertIndex>{0, 1}, 0);
  ASSERT_EQ(flow.NextLoad(), 0);
  flow.Loaded(0, 1);
  EXPECT_FALSE(flow.CanLoad());
  EXPECT_EQ(flow.NextLoad(), std::nullopt);
  EXPECT_EQ(flow.state(0), State::kReady);
  std::vector<ExpertIndex> taken;
  flow.TakeReady(taken, 0);
  EXPECT_FALSE(flow.CanLoad());  // nor does what is being computed
  flow.Release(0, 0);
  EXPECT_EQ(flow.NextLoad(), 1);
}

TEST_F(StreamFlowCutTest, AFailedReadAheadIsNoPrefetchThatWasUsed) {
  StreamFlow flow = WithBuffers(2);
  flow.BeginPass(1);
  ASSERT_EQ(flow.NextLoad(), 0);
  EXPECT_FALSE(flow.Failed(0));
  flow.AllowReadAhead(false);
  const ExpertStats stats = Visit(flow, {0});
  EXPECT_EQ(stats.prefetched, 1u);
  EXPECT_EQ(stats.prefetched_used, 0u);
  EXPECT_EQ(stats.given_up, 1u);
  EXPECT_EQ(stats.misses, 1u);
}

}  // namespace
}  // namespace moesaic
