// Samples of an engine for who looks on: what is in them, that they are made only while somebody
// watches, and that neither side of a view waits for the other.

#include "serving/engine/live_view.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serving/engine/live_sampler.h"
#include "tests/serving/engine/collector.h"
#include "tests/serving/engine/idle_provider.h"

namespace moesaic {
namespace {

using Presence = ExpertPresence;
using Clock = LiveSampler::Clock;

// Where experts are, as the test says.
class ScriptedProvider final : public IdleProvider {
 public:
  int64_t slots() const override { return 2; }
  int64_t resident() const override { return 0; }
  bool Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const override {
    ++looks;
    std::copy(now.begin(), now.end(), places.begin());
    links.push_back({.on_demand_us = 7, .prefetch_us = 8});
    return tells;
  }

  bool tells = true;
  std::vector<Presence> now;
  mutable int looks = 0;
};

struct Rig {
  explicit Rig(int64_t layers = 2, int64_t experts = 3)
      : kv({{0}, kKvBlockTokens, kAttentionChunkTokens}, 1 << 10),
        scheduler({}, kv),
        sampler(view, layers, experts, start) {}

  // The sample that is made now.
  std::shared_ptr<const LiveSample> Sample() {
    sampler.Sample({scheduler, kv, &provider, totals, 5, ""}, now);
    return view.Latest();
  }
  std::unique_ptr<Sequence> MakeSequence(RequestId id) const {
    auto made = std::make_unique<Sequence>();
    Sequence& sequence = *made;
    sequence.id = id;
    sequence.request.id = "request-" + std::to_string(id);
    sequence.request.max_tokens = 9;
    sequence.tokens.resize(4);
    sequence.prompt_tokens = 4;
    sequence.arrival = start;
    return made;
  }

  const Clock::time_point start{std::chrono::hours(1)};
  Clock::time_point now = start;
  int wakes = 0;
  LiveView view{{}, [this] { ++wakes; }};
  KvManager kv;
  Scheduler scheduler;
  ScriptedProvider provider;
  StepStats totals;
  LiveSampler sampler;
};

TEST(LiveSamplerTest, NobodyLooksAndNothingIsDone) {
  Rig rig;
  rig.sampler.BeginStep(10);
  EXPECT_FALSE(rig.sampler.counting());
  rig.sampler.Changed();
  EXPECT_FALSE(rig.sampler.Due(rig.now + std::chrono::hours(1)));
  EXPECT_EQ(rig.sampler.DueAt(), Clock::time_point::max());
  rig.sampler.Ended(*rig.MakeSequence(1), "stop", rig.now);
  EXPECT_EQ(rig.view.number(), 0u);
  EXPECT_EQ(rig.view.Latest()->number, 0u);
  EXPECT_EQ(rig.wakes, 0);
}

TEST(LiveSamplerTest, WhoBeginsToWatchGetsASample) {
  Rig rig;
  rig.Sample();  // nothing has changed since
  std::optional<LiveView::Watch> first(rig.view);
  EXPECT_EQ(rig.wakes, 1);
  const auto due = rig.now + LiveSampler::kInterval;
  EXPECT_EQ(rig.sampler.DueAt(), due);
  EXPECT_FALSE(rig.sampler.Due(due - std::chrono::milliseconds(1)));
  EXPECT_TRUE(rig.sampler.Due(due));
  rig.now = due;
  EXPECT_EQ(rig.Sample()->number, 2u);
  EXPECT_EQ(rig.sampler.DueAt(), Clock::time_point::max());  // until something happens
  rig.sampler.Changed();
  EXPECT_EQ(rig.sampler.DueAt(), due + LiveSampler::kInterval);
  {
    const LiveView::Watch second(rig.view);
    EXPECT_EQ(rig.wakes, 2);
    first.reset();
    EXPECT_TRUE(rig.view.watched());
  }
  EXPECT_FALSE(rig.view.watched());
  EXPECT_EQ(rig.sampler.DueAt(), Clock::time_point::max());
}

TEST(LiveSamplerTest, UseIsThePartOfTheLastTokens) {
  Rig rig;
  const LiveView::Watch watch(rig.view);
  rig.sampler.BeginStep(2);
  ASSERT_TRUE(rig.sampler.counting());
  rig.sampler.CountUse(0, std::vector<int32_t>{0, 2, 0, 1});  // two tokens, two experts each
  rig.sampler.CountUse(1, std::vector<int32_t>{1, 2, 1, 2});
  EXPECT_EQ(rig.Sample()->use, (std::vector<float>{1, 0.5f, 0.5f, 0, 1, 1}));
  // 256 tokens later, of which none was as before, it counts half as much as a token of then.
  const auto tokens = static_cast<int64_t>(LiveSample::kUseHalfLifeTokens);
  rig.sampler.BeginStep(tokens);
  rig.sampler.CountUse(0, std::vector<int32_t>(static_cast<size_t>(tokens), 1));
  const auto use = rig.Sample()->use;
  const float weight = 1 + static_cast<float>(tokens);
  EXPECT_FLOAT_EQ(use[0], 1 / weight);
  EXPECT_FLOAT_EQ(use[1], (0.5f + static_cast<float>(tokens)) / weight);
  EXPECT_FLOAT_EQ(use[4], 1 / weight);
}

TEST(LiveSamplerTest, WhoComesLaterDoesNotSeeWhatWasUsedBefore) {
  Rig rig;
  {
    const LiveView::Watch watch(rig.view);
    rig.sampler.BeginStep(1);
    rig.sampler.CountUse(0, std::vector<int32_t>{0, 1});
    rig.Sample();
  }
  rig.sampler.BeginStep(1);
  EXPECT_FALSE(rig.sampler.counting());
  const LiveView::Watch watch(rig.view);
  EXPECT_EQ(rig.Sample()->use, std::vector<float>(6, 0));
  rig.sampler.BeginStep(1);
  rig.sampler.CountUse(1, std::vector<int32_t>{0, 1});
  EXPECT_EQ(rig.Sample()->use, (std::vector<float>{0, 0, 0, 1, 1, 0}));
}

TEST(LiveSamplerTest, PlacesAndWhoHasLeft) {
  Rig rig;
  const auto absent = Presence::kAbsent;
  const auto resident = Presence::kResident;
  const auto arriving = Presence::kArriving;
  rig.provider.now = {resident, absent, arriving, resident, resident, absent};
  auto sample = rig.Sample();
  EXPECT_EQ(sample->places, rig.provider.now);
  EXPECT_EQ(sample->left, std::vector<uint8_t>(6, 0));
  ASSERT_EQ(sample->links.size(), 1u);
  EXPECT_EQ(sample->links[0].on_demand_us, 7);
  EXPECT_EQ(sample->expert_slots, 5);
  rig.provider.now = {resident, absent, absent, absent, arriving, resident};
  sample = rig.Sample();
  EXPECT_EQ(sample->left, (std::vector<uint8_t>{0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(rig.Sample()->left, std::vector<uint8_t>(6, 0));
  rig.provider.tells = false;
  sample = rig.Sample();
  EXPECT_TRUE(sample->places.empty());
  EXPECT_TRUE(sample->left.empty());
}

TEST(LiveSamplerTest, Requests) {
  Rig rig;
  const LiveView::Watch watch(rig.view);
  for (RequestId id = 1; id <= 60; ++id) {
    rig.scheduler.Add(rig.MakeSequence(id));
  }
  const auto made = rig.MakeSequence(100);
  Sequence& ended = *made;
  ended.started = true;
  ended.started_at = rig.start + std::chrono::microseconds(30);
  ended.experts.blocked_us = 11;
  ended.tokens.resize(7);
  ended.computed_tokens = 6;
  std::vector<std::shared_ptr<const RequestTrace>> traces;
  traces.reserve(30);
  for (RequestId id = 100; id < 130; ++id) {
    ended.id = id;
    traces.push_back(std::make_shared<const RequestTrace>());
    rig.sampler.Ended(ended, "length", rig.start + std::chrono::microseconds(50), traces.back());
  }
  EXPECT_EQ(rig.sampler.TraceOf(129), traces[29]);
  EXPECT_EQ(rig.sampler.TraceOf(122), traces[22]);
  EXPECT_EQ(rig.sampler.TraceOf(121), nullptr);  // not listed any more
  rig.now = rig.start + std::chrono::microseconds(70);
  const auto sample = rig.Sample();
  EXPECT_EQ(sample->waiting, 60);
  ASSERT_EQ(sample->requests.size(), LiveSample::kMaxRequests);
  const LiveRequest& waits = sample->requests.front();
  EXPECT_EQ(waits.id, 1u);
  EXPECT_EQ(waits.name, "request-1");
  EXPECT_EQ(waits.phase, LiveRequest::Phase::kWaiting);
  EXPECT_EQ(waits.queue_us, 70);
  EXPECT_EQ(waits.prompt_tokens, 4);
  EXPECT_EQ(waits.max_tokens, 9);
  const LiveRequest& last =
      sample->requests[LiveSample::kMaxRequests - LiveSampler::kEndedRequests];
  EXPECT_EQ(last.id, 129u);  // the newest first
  EXPECT_EQ(last.phase, LiveRequest::Phase::kEnded);
  EXPECT_EQ(last.ended, "length");
  EXPECT_EQ(last.queue_us, 30);
  EXPECT_EQ(last.age_us, 50);
  EXPECT_EQ(last.blocked_us, 11);
  EXPECT_EQ(last.output_tokens, 3);
  ended.computed_tokens = 3;
  EXPECT_EQ(LiveSampler::RequestOf(ended, rig.now).phase, LiveRequest::Phase::kPrefill);
  ended.computed_tokens = 4;
  EXPECT_EQ(LiveSampler::RequestOf(ended, rig.now).phase, LiveRequest::Phase::kDecode);
}

// Each sample is of one piece, whoever reads, and newer than the last one that was read.
TEST(LiveViewTest, ReadersAndTheWriter) {
  LiveView view({}, [] {});
  constexpr uint64_t kSamples = 20'000;
  std::atomic<bool> wrong{false};
  std::vector<std::thread> readers;
  readers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      uint64_t last = 0;
      while (last < kSamples) {
        const LiveView::Watch watch(view);
        const auto sample = view.Latest();
        if (sample->number < last) wrong.store(true);
        last = sample->number;
        for (const float use : sample->use) {
          if (use != static_cast<float>(last)) wrong.store(true);
        }
      }
    });
  }
  for (uint64_t number = 1; number <= kSamples; ++number) {
    LiveSample& back = view.Back();
    back.use.assign(16, static_cast<float>(number));
    view.Publish();
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_FALSE(wrong.load());
  EXPECT_FALSE(view.watched());
  EXPECT_EQ(view.number(), kSamples);
}

}  // namespace
}  // namespace moesaic
