// What streams, what stays, and in which order: the decisions without threads or bytes.

#include "prefetch/link/stream_flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace moesaic {
namespace {

constexpr int kStreamedLayers = 3;
constexpr int kStreamedExperts = 4;

StreamFlow MakeFlow(int64_t slots, int64_t buffers, int64_t group = 100) {
  return StreamFlow(ExpertGrid(kStreamedLayers, kStreamedExperts), SparseLayers(kStreamedLayers),
                    slots, buffers, group);
}

std::vector<ExpertIndex> Layer(int layer, const std::vector<int>& indices) {
  std::vector<ExpertIndex> experts;
  experts.reserve(indices.size());
  for (const int index : indices) experts.push_back(layer * kStreamedExperts + index);
  return experts;
}

// Reads until nothing more can be read; what was read, in order.
std::vector<ExpertIndex> LoadAll(StreamFlow& flow) {
  std::vector<ExpertIndex> loaded;
  while (const auto expert = flow.NextLoad()) {
    loaded.push_back(*expert);
    flow.Loaded(*expert, 1);
  }
  return loaded;
}

std::vector<ExpertIndex> TakeAll(StreamFlow& flow) {
  std::vector<ExpertIndex> taken;
  flow.TakeReady(taken, 0);
  for (const ExpertIndex expert : taken) flow.Release(expert, 0);
  return taken;
}

TEST(StreamFlowTest, ResidentsAreSpreadOverLayers) {
  StreamFlow flow = MakeFlow(7, 2);
  EXPECT_EQ(flow.residents(), 5);
  EXPECT_EQ(flow.buffers(), 2);
  int per_layer[kStreamedLayers] = {};
  for (int layer = 0; layer < kStreamedLayers; ++layer) {
    for (const ExpertIndex expert : Layer(layer, {0, 1, 2, 3})) {
      per_layer[layer] += flow.resident(expert);
    }
  }
  EXPECT_EQ(per_layer[0], 2);
  EXPECT_EQ(per_layer[1], 2);
  EXPECT_EQ(per_layer[2], 1);
  EXPECT_EQ(MakeFlow(12, 5).buffers(), 0);  // all fit
  EXPECT_EQ(MakeFlow(1, 5).residents(), 0);
}

TEST(StreamFlowTest, ReadsInTheOrderOfTheLayersAndAroundTheEnd) {
  StreamFlow flow = MakeFlow(5, 5);
  EXPECT_FALSE(flow.NextLoad().has_value());  // no pass has begun
  flow.AllowReadAhead(true);
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{0, 1, 2, 3, 4}));
  flow.BeginLayer(Layer(0, {1, 3}), 0);  // 0 and 2 make room at once
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{5, 6}));
  EXPECT_EQ(TakeAll(flow), Layer(0, {1, 3}));
  EXPECT_EQ(flow.waiting(), 0);
  ExpertStats stats = flow.EndLayer(0);
  EXPECT_EQ(stats.hits, 2u);
  EXPECT_EQ(stats.prefetched_unused, 2u);
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{7, 8}));
  flow.BeginLayer(Layer(1, {0, 1, 2, 3}), 0);
  while (flow.waiting() > 0) TakeAll(flow);
  EXPECT_EQ(flow.EndLayer(0).hits, 4u);
  // Layer 2, then only what layer 0 used last time.
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{9, 10, 11, 1}));
  flow.BeginLayer(Layer(2, {0, 1, 2, 3}), 0);
  while (flow.waiting() > 0) TakeAll(flow);
  flow.EndLayer(0);
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{3, 4, 5, 6}));
}

TEST(StreamFlowTest, StreamedExpertsLeaveBeforeResidentsAreComputed) {
  StreamFlow flow = MakeFlow(8, 4);
  flow.AllowReadAhead(true);
  LoadAll(flow);
  flow.BeginLayer(Layer(0, {0, 1, 2, 3}), 0);
  LoadAll(flow);
  std::vector<ExpertIndex> taken;
  flow.TakeReady(taken, 0);
  EXPECT_EQ(taken, Layer(0, {2, 3}));  // at most half of the buffers
  taken.clear();
  flow.TakeReady(taken, 0);
  EXPECT_EQ(taken, Layer(0, {0, 1}));
  flow.EndLayer(0);
  EXPECT_EQ(flow.state(0), StreamFlow::State::kReady);
  EXPECT_EQ(flow.state(2), StreamFlow::State::kAbsent);
}

TEST(StreamFlowTest, FewBuffersDoNotMakeGroupsOfResidentsSmall) {
  StreamFlow flow = MakeFlow(11, 2, 3);  // 3 residents a layer, one expert streams
  flow.AllowReadAhead(true);
  flow.BeginPass(1);
  flow.BeginLayer(Layer(0, {0, 1, 2, 3}), 0);
  LoadAll(flow);
  EXPECT_EQ(TakeAll(flow), Layer(0, {3}));
  EXPECT_EQ(TakeAll(flow), Layer(0, {0, 1, 2}));
  flow.EndLayer(0);
  // Of two that wait in their buffers one is taken: the other one's read went on meanwhile.
  StreamFlow streams = MakeFlow(2, 2, 3);
  streams.BeginPass(1);
  streams.BeginLayer(Layer(0, {0, 1}), 0);
  LoadAll(streams);
  EXPECT_EQ(TakeAll(streams), Layer(0, {0}));
  EXPECT_EQ(TakeAll(streams), Layer(0, {1}));
}

TEST(StreamFlowTest, WhatWasReadAheadGivesWay) {
  StreamFlow flow = MakeFlow(1, 1);
  flow.AllowReadAhead(true);
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{0}));
  flow.BeginLayer(Layer(0, {0}), 0);
  TakeAll(flow);
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{4}));
  flow.EndLayer(0);
  // The layer that follows is another one: its expert takes the only buffer.
  flow.BeginLayer(Layer(2, {1}), 0);
  EXPECT_TRUE(flow.CanLoad());
  EXPECT_EQ(flow.NextLoad(), 9);
  EXPECT_EQ(flow.state(4), StreamFlow::State::kAbsent);
  EXPECT_TRUE(flow.Failed(9));
  EXPECT_EQ(flow.waiting(), 0);
  flow.EndLayer(0);
}

TEST(StreamFlowTest, ReadsTheOpenLayerForTheNextPass) {
  StreamFlow flow(ExpertGrid(1, kStreamedExperts), SparseLayers(1), 2, 2, 100);
  flow.AllowReadAhead(true);
  flow.BeginLayer(Layer(0, {0, 1, 2}), 0);
  EXPECT_EQ(LoadAll(flow), Layer(0, {0, 1}));
  TakeAll(flow);
  EXPECT_EQ(LoadAll(flow), Layer(0, {2}));
  TakeAll(flow);
  EXPECT_EQ(LoadAll(flow), Layer(0, {0}));
  TakeAll(flow);
  EXPECT_EQ(LoadAll(flow), Layer(0, {1}));
  flow.EndLayer(0);
  flow.BeginLayer(Layer(0, {0, 1, 2}), 0);
  EXPECT_TRUE(flow.ready());
}

TEST(StreamFlowTest, StaysInItsBufferUntilTheLastVisit) {
  StreamFlow flow = MakeFlow(4, 4);
  flow.AllowReadAhead(true);
  flow.BeginPass(2);
  LoadAll(flow);
  flow.BeginLayer(Layer(0, {0, 1}), 0);
  while (flow.waiting() > 0) TakeAll(flow);
  flow.EndLayer(0);
  EXPECT_EQ(LoadAll(flow), Layer(0, {}));  // nothing has left
  flow.BeginLayer(Layer(0, {1, 2}), 0);
  // Of what neither visit used, and of what this one has computed, the buffers are free.
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{4, 5}));
  while (flow.waiting() > 0) TakeAll(flow);
  const ExpertStats stats = flow.EndLayer(0);
  EXPECT_EQ(stats.misses, 0u);
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{6, 7}));
  flow.BeginLayer(Layer(1, {0, 1, 2, 3}), 0);
  while (flow.waiting() > 0) TakeAll(flow);
  flow.EndLayer(0);
  flow.BeginLayer(Layer(1, {3}), 0);
  // Layer 0 is read for the next pass when layer 2 is there: what either visit used.
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{8, 9, 10}));
}

TEST(StreamFlowTest, SeveralVisitsOfALayerThatTheBuffersCannotHold) {
  StreamFlow flow = MakeFlow(2, 2);
  flow.AllowReadAhead(true);
  for (int pass = 0; pass < 2; ++pass) {
    flow.BeginPass(3);
    for (int layer = 0; layer < kStreamedLayers; ++layer) {
      for (int visit = 0; visit < 3; ++visit) {
        flow.BeginLayer(Layer(layer, {0, 1, 2, 3}), 0);
        while (flow.waiting() > 0) {
          LoadAll(flow);
          ASSERT_TRUE(flow.ready());
          TakeAll(flow);
        }
        flow.EndLayer(0);
      }
    }
  }
}

TEST(StreamFlowTest, OnlyItsOwnExperts) {
  const std::vector<ExpertIndex> own = {0, 2, 5, 8, 9, 11};  // 2, 1, 3 of the layers
  for (int64_t slots = 1; slots <= 6; ++slots) {
    StreamFlow flow(ExpertGrid(kStreamedLayers, kStreamedExperts), SparseLayers(kStreamedLayers),
                    slots, 1, 100, {.experts = own});
    EXPECT_EQ(flow.slots(), slots);
    EXPECT_EQ(flow.buffers() == 0, slots == 6);
    flow.AllowReadAhead(true);
    for (const ExpertIndex expert : LoadAll(flow)) {
      EXPECT_EQ(std::count(own.begin(), own.end(), expert), 1);
    }
    flow.BeginLayer(Layer(2, {0, 1, 3}), 0);
    while (flow.waiting() > 0) {
      LoadAll(flow);
      TakeAll(flow);
    }
    flow.EndLayer(0);
  }
}

TEST(StreamFlowTest, AFailedReadAheadIsNotTriedForEver) {
  StreamFlow flow = MakeFlow(2, 2);
  flow.AllowReadAhead(true);
  EXPECT_EQ(flow.NextLoad(), 0);
  EXPECT_FALSE(flow.Failed(0));
  EXPECT_EQ(LoadAll(flow), (std::vector<ExpertIndex>{1, 2}));
  flow.BeginLayer(Layer(0, {0}), 0);
  EXPECT_EQ(flow.NextLoad(), 0);
  flow.Loaded(0, 1);
  EXPECT_EQ(TakeAll(flow), Layer(0, {0}));
  flow.EndLayer(0);
}

// Random routings, budgets and orders of arrival: every pass ends, no slot is used twice, what is
// needed is read at most once per pass as long as it was not crowded out, residents never leave.
TEST(StreamFlowTest, RandomPasses) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    StreamFlow flow =
        MakeFlow(1 + below(kStreamedLayers * kStreamedExperts), 1 + below(6), 1 + below(3));
    std::vector<ExpertIndex> loading;
    uint64_t passes_bytes = 0;
    for (int pass = 0; pass < 6; ++pass) {
      flow.AllowReadAhead(below(4) > 0);
      const int visits = 1 + below(3);
      flow.BeginPass(visits);
      for (int at = 0; at < kStreamedLayers * visits; ++at) {
        const int layer = at / visits;
        std::vector<ExpertIndex> needed;
        for (const ExpertIndex expert : Layer(layer, {0, 1, 2, 3})) {
          if (below(5) > 0) needed.push_back(expert);
        }
        if (needed.empty()) needed = Layer(layer, {below(kStreamedExperts)});
        const bool given_up = below(15) == 0;
        flow.BeginLayer(needed, 0);
        std::vector<ExpertIndex> held;
        std::vector<ExpertIndex> all_held;
        while (flow.waiting() > 0) {
          const int what = below(3);
          if (what == 0 && loading.size() < 3) {
            if (const auto expert = flow.NextLoad()) loading.push_back(*expert);
          } else if (what == 1 && !loading.empty()) {
            const auto ended = loading.begin() + below(static_cast<int>(loading.size()));
            flow.Loaded(*ended, 1);
            loading.erase(ended);
          } else if (flow.ready()) {
            flow.TakeReady(held, 0);
            for (const ExpertIndex expert : held) {
              EXPECT_EQ(std::count(needed.begin(), needed.end(), expert), 1) << "seed " << seed;
              all_held.push_back(expert);
              if (!given_up) flow.Release(expert, 0);
            }
            held.clear();
          }
          if (given_up && below(3) == 0) break;
          ASSERT_TRUE(flow.waiting() == 0 || flow.ready() || !loading.empty() || flow.CanLoad() ||
                      given_up)
              << "seed " << seed << ": nothing will ever happen";
          std::vector<int64_t> slots;
          for (ExpertIndex e = 0; e < kStreamedLayers * kStreamedExperts; ++e) {
            if (flow.state(e) != StreamFlow::State::kAbsent) slots.push_back(flow.slot(e));
          }
          std::sort(slots.begin(), slots.end());
          ASSERT_EQ(std::adjacent_find(slots.begin(), slots.end()), slots.end()) << "seed " << seed;
          ASSERT_TRUE(slots.empty() || slots.back() < flow.slots()) << "seed " << seed;
        }
        if (!given_up) {
          std::sort(all_held.begin(), all_held.end());
          EXPECT_EQ(all_held, needed) << "seed " << seed;
        }
        passes_bytes += flow.EndLayer(0).bytes_read;
      }
    }
    EXPECT_GT(passes_bytes, 0u);
    for (const ExpertIndex expert : loading) flow.Loaded(expert, 1);
    EXPECT_EQ(flow.loading(), 0);
  }
}

}  // namespace
}  // namespace moesaic
