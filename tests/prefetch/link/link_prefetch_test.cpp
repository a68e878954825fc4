// LinkPrefetch with a clock: how much of a copy it expects to have arrived, from the layers that it
// has seen, and so which of two experts it fetches first.

#include "prefetch/link/link_prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "cache/expert_cache.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/predict/step_predictor.h"
#include "tests/prefetch/told_predictor.h"

namespace moesaic {
namespace {

constexpr int kLayers = 4;
constexpr int kExperts = 3;

// States the same at every moment: expert 0 of a layer with the probability told for it.
class SteadyPredictor final : public Predictor {
 public:
  const char* name() const override { return "steady"; }
  void BeginRequest(int) override {}
  void BeginIteration(int, int32_t, int64_t) override { last_ = -1; }
  void Observe(int, int layer, std::span<const int32_t>) override { last_ = layer; }
  void Predict(int, int distance, std::span<float> probability) override {
    std::fill(probability.begin(), probability.end(), 0.0f);
    probability[0] = of_layer[static_cast<size_t>((last_ + distance) % kLayers)];
  }
  void EndRequest(int) override {}
  uint64_t memory_bytes() const override { return 0; }

  std::vector<float> of_layer = std::vector<float>(kLayers, 0.0f);

 private:
  int last_ = -1;
};

ExpertIndex FirstOf(int layer) { return layer * kExperts; }

// A link behind layer 0 whose layers take 100 ns from when they have all their experts to the next
// one. Of layer 1's expert `near` is expected, of layer 2's `far`; both are worth that less the
// price, 0.2 as long as no layer waits.
class LinkPrefetchTest : public testing::Test {
 protected:
  LinkPrefetchTest() : cache_(kLayers * kExperts, 2, 1, MakeLruPolicy(kLayers * kExperts)) {
    options_.look_ahead = 2;
    options_.min_gain = 0.8;
    options_.keep_per_iteration = 1.0;
  }

  void Expect(float near, float far) {
    predictor_.of_layer = {0, near, far, 0};
    step_predictor_.emplace(PredictorShape{kLayers, kExperts, 1, 1}, predictor_, options_);
    link_.emplace(*step_predictor_, std::span<const ExpertIndex>());
    step_predictor_->BeginRequest(0);
    const StepRequest request = {.num_rows = 1};
    step_predictor_->BeginStep({&request, 1});
    step_predictor_->OnRouting(0, std::vector<int32_t>{0});
    link_->TakeOver(*step_predictor_);
  }
  // A layer that waits so long for its experts, and computes so long.
  void RunLayer(int64_t wait_ns, int64_t compute_ns) {
    link_->LayerBegan(now_ns_);
    now_ns_ += wait_ns;
    link_->LayerReady(now_ns_);
    now_ns_ += compute_ns;
  }
  // Two of the same length: the second one's beginning ends the first one.
  void LearnLayers(int64_t compute_ns = 100) {
    link_->StepBegan(now_ns_);
    RunLayer(0, compute_ns);
    link_->LayerBegan(now_ns_);
    link_->LayerReady(now_ns_);
  }
  ExpertIndex Next(double copy_ns) const {
    const auto next = link_->Next(cache_, copy_ns, now_ns_);
    return next ? next->expert : kNoExpert;
  }
  // The least copy time, in ns, from which on the far expert is the one that is fetched. Of the
  // near one the time to the next layer, in copies, arrives; the far one arrives whole as long as a
  // copy takes no longer than a layer more than that. It is fetched from
  //   copy = time to the next layer * near / far   (both less the price).
  int64_t SwitchesAt() const {
    for (int64_t copy_ns = 1; copy_ns < 100'000; ++copy_ns) {
      if (Next(static_cast<double>(copy_ns)) == FirstOf(2)) return copy_ns;
    }
    return -1;
  }

  PrefetchOptions options_;
  SteadyPredictor predictor_;
  std::optional<StepPredictor> step_predictor_;
  std::optional<LinkPrefetch> link_;
  ExpertCache cache_;
  int64_t now_ns_ = 1'000'000;
};

// 0.7 and 0.41 less the price: the far one is fetched when a copy takes more than 1.707 times as
// long as it is to the next layer.
constexpr float kNear = 0.9f;
constexpr float kFarther = 0.61f;

TEST_F(LinkPrefetchTest, BeforeALayerWasTimedEverythingArrives) {
  Expect(kNear, kFarther);
  EXPECT_EQ(Next(1e9), FirstOf(1));
  LearnLayers();
  EXPECT_EQ(Next(0), FirstOf(1));  // how long a copy takes is not known
}

TEST_F(LinkPrefetchTest, WhatIsLeftOfTheLayerCounts) {
  Expect(kNear, kFarther);
  LearnLayers();
  EXPECT_EQ(SwitchesAt(), 171);  // all of the layer is left
  now_ns_ += 60;                 // 40 are
  EXPECT_EQ(SwitchesAt(), 69);
}

TEST_F(LinkPrefetchTest, AnOverdueLayerEndsSoonAllTheSame) {
  Expect(kNear, kFarther);
  LearnLayers();
  for (const int64_t overdue_ns : {0, 1, 50, 100'000}) {
    const int64_t now_ns = now_ns_;
    now_ns_ += 100 + overdue_ns;
    // A tenth of a layer is left, however long it has lasted.
    EXPECT_EQ(SwitchesAt(), 18) << overdue_ns;
    now_ns_ = now_ns;
  }
}

// To the layer at distance 2 it is a whole layer more: (100 + 100) / copy of it has arrived.
TEST_F(LinkPrefetchTest, FartherLayersHaveTheTimeOfThoseBetween) {
  Expect(0.95f, 0.6f);  // 0.75 near, 0.4 far
  LearnLayers();
  // near: 0.75 * 100 / copy. far: 0.4 up to 200, then 0.4 * 200 / copy, which is more for ever.
  EXPECT_EQ(Next(187), FirstOf(1));
  EXPECT_EQ(Next(189), FirstOf(2));
  EXPECT_EQ(Next(10'000), FirstOf(2));
  Expect(0.95f, 0.55f);  // 0.75 near, 0.35 far: never, because 0.35 * 200 is less than 0.75 * 100
  LearnLayers();
  EXPECT_EQ(SwitchesAt(), -1);
}

// A layer's time begins when it waits for nothing any more: before that all of it is left.
TEST_F(LinkPrefetchTest, WaitingIsNotPartOfALayer) {
  options_.min_gain = 0.203;  // layers wait nearly all of the time: the price is 0.2 again
  Expect(kNear, kFarther);
  link_->StepBegan(now_ns_);
  RunLayer(5000, 100);
  link_->LayerBegan(now_ns_);
  now_ns_ += 70;  // waits
  EXPECT_EQ(SwitchesAt(), 171);
  link_->LayerReady(now_ns_);
  EXPECT_EQ(SwitchesAt(), 171);
  now_ns_ += 50;
  link_->LayerReady(now_ns_);  // told again, which changes nothing
  EXPECT_EQ(SwitchesAt(), 86);
}

// What lies between two steps is no layer's time, and the first layer of a step has it all before
// it.
TEST_F(LinkPrefetchTest, APauseBetweenStepsIsNoLayer) {
  Expect(kNear, kFarther);
  LearnLayers();
  now_ns_ += 1'000'000;
  link_->StepBegan(now_ns_);
  EXPECT_EQ(SwitchesAt(), 171);
  now_ns_ += 30;
  EXPECT_EQ(SwitchesAt(), 120);
  link_->LayerBegan(now_ns_);
  link_->LayerReady(now_ns_);
  EXPECT_EQ(SwitchesAt(), 171);
}

TEST_F(LinkPrefetchTest, LayersThatGetLongerAreFollowed) {
  Expect(kNear, kFarther);
  LearnLayers();
  now_ns_ += 200;
  link_->LayerBegan(now_ns_);  // 100, then 200: the newest counts a tenth
  EXPECT_EQ(SwitchesAt(), 188);
}

// The price is min_gain where layers always wait, and a quarter of it where they never do.
TEST_F(LinkPrefetchTest, AnIdleLinkIsCheaper) {
  const auto price = [this] {
    return double{kNear} - link_->Next(cache_, 0, now_ns_).value().worth;
  };
  Expect(kNear, kFarther);
  EXPECT_NEAR(price(), 0.8, 1e-6);  // nothing is known of its layers
  LearnLayers();
  EXPECT_NEAR(price(), 0.2, 1e-6);
  EXPECT_TRUE(link_->Stale(FirstOf(3)));
  Expect(kNear, kFarther);
  link_->StepBegan(now_ns_);
  RunLayer(300, 100);
  link_->LayerBegan(now_ns_);
  EXPECT_NEAR(price(), 0.8 * (0.25 + 0.75 * 0.75), 1e-6);
  EXPECT_TRUE(link_->Stale(FirstOf(2)));  // 0.61 is less than 0.65
  link_->LayerReady(now_ns_);             // the newest counts a tenth: 270 of 370
  EXPECT_NEAR(price(), 0.8 * (0.25 + 0.75 * 270 / 370), 1e-6);
  EXPECT_FALSE(link_->Stale(FirstOf(1)));
}

TEST_F(LinkPrefetchTest, WhatCouldNotBeReadIsLeftAlone) {
  Expect(kNear, kFarther);
  LearnLayers();
  link_->SetUnreadable(FirstOf(1), true);
  EXPECT_EQ(Next(0), FirstOf(2));
  link_->SetUnreadable(FirstOf(1), false);
  EXPECT_EQ(Next(0), FirstOf(1));
}

// Of two that gain the same the nearer one is fetched, of one layer's the first.
TEST_F(LinkPrefetchTest, TiesGoToTheNearer) {
  Expect(0.5f, 0.5f);
  LearnLayers();
  EXPECT_EQ(Next(0), FirstOf(1));
}

// The victim's worth counts where the cache keeps by worth. An LRU stamp is no probability.
TEST_F(LinkPrefetchTest, WhatItThrowsOutCountsWhereThatIsKnown) {
  Expect(kNear, kFarther);
  LearnLayers();
  const auto fill = [&](ExpertCache& cache) {
    for (const ExpertIndex expert : {FirstOf(1), FirstOf(3)}) {
      ASSERT_TRUE(cache.Reserve(expert, LoadReason::kOnDemand, 7).has_value());
      cache.Commit(expert, 7);
    }
  };
  ExpertCache recent(kLayers * kExperts, 2, 1, MakeLruPolicy(kLayers * kExperts));
  fill(recent);
  EXPECT_EQ(link_->Next(recent, 0, now_ns_)->expert, FirstOf(2));
  ExpertCache by_worth(kLayers * kExperts, 2, 1, MakeNextUsePolicy(link_->worth()));
  fill(by_worth);
  EXPECT_EQ(link_->Next(by_worth, 0, now_ns_)->expert, FirstOf(2));  // for layer 3's, worth nothing
  by_worth.Want(FirstOf(3));
  EXPECT_FALSE(link_->Next(by_worth, 0, now_ns_).has_value());  // layer 1's is worth more
  by_worth.Want(FirstOf(1));
  EXPECT_FALSE(link_->Next(by_worth, 0, now_ns_).has_value());  // none may leave
}

// One link that has taken over what was predicted behind layer 0.
struct BestToFetchTest : testing::Test {
  BestToFetchTest() : told(4) {
    told.told = {{0, 0, 0}, {0.9f, 0.5f, 0.1f}, {0.95f, 0, 0}, {0, 0, 1.0f}};
    options.look_ahead = 2;
    options.min_gain = 0.2;
    options.keep_per_iteration = 1.0;
  }
  std::optional<LinkPrefetch::Candidate> Next(double victim, double copies_per_layer = 1,
                                              std::vector<ExpertIndex> experts = {}) {
    StepPredictor step_predictor({4, 3, 1, 2}, told, options);
    step_predictor.BeginRequest(0);
    const StepRequest request = {.num_rows = 1};
    step_predictor.BeginStep({&request, 1});
    step_predictor.OnRouting(0, std::vector<int32_t>{0});
    LinkPrefetch link(step_predictor, experts);
    link.TakeOver(step_predictor);
    return link.Best(
        [this](ExpertIndex expert) {
          return std::find(resident.begin(), resident.end(), expert) == resident.end();
        },
        [&](int distance) { return copies_per_layer * distance; }, victim);
  }

  ToldPredictor told;
  PrefetchOptions options;
  std::vector<ExpertIndex> resident;
};

TEST_F(BestToFetchTest, TakesWhatGainsMostAndStopsWhereNothingGains) {
  EXPECT_EQ(Next(0)->expert, 6);  // layer 2, 0.95
  resident = {6};
  EXPECT_EQ(Next(0)->expert, 3);  // layer 1, 0.9
  resident = {6, 3};
  EXPECT_EQ(Next(0)->expert, 4);
  EXPECT_NEAR(Next(0)->worth, 0.5 - 0.2, 1e-6);
  EXPECT_FALSE(Next(0.31).has_value());  // the victim is worth more
  resident = {6, 3, 4};
  EXPECT_FALSE(Next(0).has_value());  // 0.1 is below the price; layer 3 is too far
}

TEST_F(BestToFetchTest, WhatCannotArriveInTimeCountsForThePartThatDoes) {
  told.told[2][0] = 0.91f;
  EXPECT_EQ(Next(0, 1)->expert, 6);
  told.told[1][0] = 0.99f;
  EXPECT_EQ(Next(0, 1)->expert, 3);
  EXPECT_EQ(Next(0, 0.3)->expert, 6);  // of layer 1 only a third would be there
}

TEST_F(BestToFetchTest, ALinkLooksOnlyAtExpertsOfItsOwn) {
  EXPECT_EQ(Next(0, 1, {0, 4, 8})->expert, 4);
  EXPECT_FALSE(Next(0, 1, {0, 1, 2}).has_value());
}

}  // namespace
}  // namespace moesaic
