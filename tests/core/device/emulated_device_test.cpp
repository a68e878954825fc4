// Times of the emulated device on a virtual clock: they are the model's to the nanosecond.
#include "core/device/emulated_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/core/device/emulated_machine.h"

namespace moesaic {
namespace {

using State = Event::State;

// 1 byte per us to the device and 2 back, 10 us and 20 us of latency; 4 bytes per us and 5 us to a
// peer; within the device 100 bytes per us.
EmulatedDeviceOptions SlowLinks() {
  EmulatedDeviceOptions options;
  options.capacity_bytes = 1 << 20;
  options.host_to_device = {1e6, 10};
  options.device_to_host = {2e6, 20};
  options.peer = {4e6, 5};
  options.local = {100e6, 0};
  return options;
}

class EmulatedTimeTest : public testing::Test {
 protected:
  EmulatedTimeTest() {
    for (int d = 0; d < 2; ++d) {
      memory_.push_back(*machine_.device(d).Allocate(kMemoryBytes));
      stream_.push_back(machine_.device(d).CreateStream());
      other_.push_back(machine_.device(d).CreateStream());
    }
  }

  // Memory that no other copy of the test has: copies of different streams race otherwise.
  DeviceSpan Place(int device, uint64_t bytes) {
    return memory_[static_cast<size_t>(device)].Subspan(Take(bytes), bytes);
  }
  std::span<std::byte> HostPlace(uint64_t bytes) {
    return std::span(host_).subspan(Take(bytes), bytes);
  }
  void In(Stream& stream, int device, uint64_t bytes) {
    stream.CopyToDevice(Place(device, bytes), HostPlace(bytes));
  }
  void Out(Stream& stream, int device, uint64_t bytes) {
    stream.CopyToHost(HostPlace(bytes), Place(device, bytes));
  }
  std::unique_ptr<Event> Recorded(Stream& stream, int device = 0) {
    auto event = machine_.device(device).CreateEvent();
    stream.Record(*event);
    return event;
  }
  // The event completes `us` from now, not earlier and not later.
  void ExpectAt(Event& event, int64_t us) {
    machine_.system().AdvanceNs(us * 1000 - 1);
    EXPECT_EQ(event.Query(), State::kPending) << us;
    machine_.system().AdvanceNs(1);
    EXPECT_EQ(event.Query(), State::kComplete) << us;
  }

  static constexpr uint64_t kMemoryBytes = 1 << 16;

  uint64_t Take(uint64_t bytes) { return std::exchange(taken_bytes_, taken_bytes_ + bytes); }

  EmulatedMachine machine_{TestTime::kVirtual, 2, SlowLinks()};
  std::vector<DeviceBuffer> memory_;
  std::vector<std::byte> host_ = std::vector<std::byte>(kMemoryBytes);
  uint64_t taken_bytes_ = 0;
  std::vector<std::unique_ptr<Stream>> stream_;  // [device]
  std::vector<std::unique_ptr<Stream>> other_;   // [device]
};

TEST_F(EmulatedTimeTest, ACopyTakesLatencyAndBytesOverRate) {
  In(*stream_[0], 0, 100);
  const auto in = Recorded(*stream_[0]);
  ExpectAt(*in, 110);
  machine_.system().AdvanceUs(1000);
  Out(*stream_[0], 0, 100);  // begins when it is queued, not when the link became free
  const auto out = Recorded(*stream_[0]);
  ExpectAt(*out, 70);
}

TEST_F(EmulatedTimeTest, ALinkMovesOneCopyAtATime) {
  In(*stream_[0], 0, 100);
  const auto first = Recorded(*stream_[0]);
  In(*other_[0], 0, 50);
  const auto second = Recorded(*other_[0]);
  ExpectAt(*first, 110);
  EXPECT_EQ(second->Query(), State::kPending);
  ExpectAt(*second, 60);
}

TEST_F(EmulatedTimeTest, DirectionsAndDevicesDoNotDisturbEachOther) {
  In(*stream_[0], 0, 100);
  Out(*other_[0], 0, 180);
  In(*stream_[1], 1, 100);
  const auto a = Recorded(*stream_[0]);
  const auto b = Recorded(*other_[0]);
  const auto c = Recorded(*stream_[1], 1);
  machine_.system().AdvanceNs(110 * 1000 - 1);
  for (const auto* event : {&a, &b, &c}) EXPECT_EQ((*event)->Query(), State::kPending);
  machine_.system().AdvanceNs(1);
  for (const auto* event : {&a, &b, &c}) EXPECT_EQ((*event)->Query(), State::kComplete);
}

TEST_F(EmulatedTimeTest, AStreamIsOneAfterTheOtherOverAllLinks) {
  In(*stream_[0], 0, 100);                                // 110
  stream_[0]->CopyBetween(Place(1, 200), Place(0, 200));  // 55
  stream_[0]->CopyBetween(Place(0, 400), Place(0, 400));  // 4
  Out(*stream_[0], 0, 20);                                // 30
  ExpectAt(*Recorded(*stream_[0]), 199);
}

TEST_F(EmulatedTimeTest, APeerCopyTakesTheEngineOfItsSource) {
  stream_[0]->CopyBetween(Place(0, 400), Place(1, 400));  // by device 1
  stream_[1]->CopyBetween(Place(0, 400), Place(1, 400));  // behind it
  other_[0]->CopyBetween(Place(1, 400), Place(0, 400));   // by device 0
  const auto last = Recorded(*stream_[1], 1);
  ExpectAt(*Recorded(*other_[0]), 105);
  ExpectAt(*last, 105);
}

TEST_F(EmulatedTimeTest, AWaitingStreamStartsWhenTheEventHappened) {
  In(*stream_[0], 0, 100);
  const auto event = Recorded(*stream_[0]);
  stream_[1]->Wait(*event);
  Out(*stream_[1], 1, 20);
  // One jump over both ends: the second copy starts at the event, not at the time after the jump.
  const auto out = Recorded(*stream_[1], 1);
  ExpectAt(*out, 140);
}

TEST_F(EmulatedTimeTest, SynchronizeMovesTheTimeToTheEndAndNoFurther) {
  In(*stream_[0], 0, 100);
  In(*other_[0], 0, 1000);
  EXPECT_FALSE(stream_[0]->Synchronize().has_value());
  EXPECT_EQ(machine_.NowNs(), 110 * 1000);
  EXPECT_FALSE(other_[0]->Idle());
  EXPECT_FALSE(Recorded(*other_[0])->Synchronize().has_value());
  EXPECT_EQ(machine_.NowNs(), 1120 * 1000);
}

TEST_F(EmulatedTimeTest, NothingHappensWhileTimeStandsStill) {
  In(*stream_[0], 0, 1);
  const auto event = Recorded(*stream_[0]);
  machine_.system().AdvanceNs(0);
  EXPECT_EQ(event->Query(), State::kPending);
  EXPECT_EQ(machine_.NowNs(), 0);
}

TEST_F(EmulatedTimeTest, CountsWhatItsEnginesDo) {
  In(*stream_[0], 0, 100);
  In(*stream_[0], 0, 50);
  Out(*stream_[0], 0, 20);
  EXPECT_FALSE(stream_[0]->Synchronize().has_value());
  const auto in = machine_.device(0).counters(EmulatedEngine::kHostToDevice);
  EXPECT_EQ(in.copies, 2u);
  EXPECT_EQ(in.bytes, 150u);
  EXPECT_EQ(in.busy_ns, 170 * 1000);
  EXPECT_EQ(machine_.device(0).counters(EmulatedEngine::kDeviceToHost).busy_ns, 30 * 1000);
  EXPECT_EQ(machine_.device(1).counters(EmulatedEngine::kHostToDevice).copies, 0u);
}

// What one would write on paper: engines serve heads of streams in the order in which they become
// ready, one at a time.
struct PaperCopy {
  int device = 0;
  EmulatedEngine engine = EmulatedEngine::kHostToDevice;
  uint64_t bytes = 0;
};
std::vector<std::vector<int64_t>> EndsOnPaper(const std::vector<std::vector<PaperCopy>>& streams,
                                              const std::map<EmulatedEngine, EmulatedLink>& links) {
  std::vector<std::vector<int64_t>> ends(streams.size());
  std::map<std::pair<int, EmulatedEngine>, int64_t> free_at;
  for (;;) {
    // Of all heads, the one that begins first; among equals the one that was ready first.
    int best = -1;
    std::tuple<int64_t, int64_t> best_key;
    for (size_t s = 0; s < streams.size(); ++s) {
      if (ends[s].size() == streams[s].size()) continue;
      const PaperCopy& copy = streams[s][ends[s].size()];
      const int64_t ready = ends[s].empty() ? 0 : ends[s].back();
      const std::tuple<int64_t, int64_t> key = {
          std::max(ready, free_at[{copy.device, copy.engine}]), ready};
      if (best < 0 || key < best_key) {
        best = static_cast<int>(s);
        best_key = key;
      }
    }
    if (best < 0) return ends;
    std::vector<int64_t>& mine = ends[static_cast<size_t>(best)];
    const PaperCopy& copy = streams[static_cast<size_t>(best)][mine.size()];
    const EmulatedLink& link = links.at(copy.engine);
    const int64_t end = std::get<0>(best_key) +
                        std::llround(link.latency_us * 1e3 +
                                     static_cast<double>(copy.bytes) / link.bytes_per_s * 1e9);
    free_at[{copy.device, copy.engine}] = end;
    mine.push_back(end);
  }
}

TEST(EmulatedTimePropertyTest, RandomStreamsEndWhenTheyDoOnPaper) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kMaxBytes = 100000;
  EmulatedDeviceOptions options;
  options.capacity_bytes = 1 << 20;
  // Odd numbers: copies that become ready for one engine at the same instant are very rare.
  options.host_to_device = {1.0037e6, 10.1713};
  options.device_to_host = {2.0391e6, 20.3371};
  options.local = {4.0171e6, 5.5397};
  const std::map<EmulatedEngine, EmulatedLink> links = {
      {EmulatedEngine::kHostToDevice, options.host_to_device},
      {EmulatedEngine::kDeviceToHost, options.device_to_host},
      {EmulatedEngine::kDeviceToDevice, options.local}};
  for (int schedule = 0; schedule < 60; ++schedule) {
    EmulatedMachine machine(TestTime::kVirtual, 2, options);
    std::vector<std::vector<PaperCopy>> copies(1 + random() % 5);
    std::vector<DeviceBuffer> memory;  // [streams]
    std::vector<std::vector<std::byte>> host(copies.size(), std::vector<std::byte>(kMaxBytes));
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::vector<std::unique_ptr<Event>>> events(copies.size());
    // All is queued at time 0.
    for (size_t s = 0; s < copies.size(); ++s) {
      const int d = static_cast<int>(random() % 2);
      streams.push_back(machine.device(d).CreateStream());
      Stream& stream = *streams.back();
      memory.push_back(*machine.device(d).Allocate(kMaxBytes));
      for (uint64_t c = 1 + random() % 10; c > 0; --c) {
        const PaperCopy copy{d, static_cast<EmulatedEngine>(random() % 3),
                             1 + random() % kMaxBytes};
        const DeviceSpan span = memory.back().Subspan(0, copy.bytes);
        switch (copy.engine) {
          case EmulatedEngine::kHostToDevice:
            stream.CopyToDevice(span, std::span(host[s]).first(copy.bytes));
            break;
          case EmulatedEngine::kDeviceToHost:
            stream.CopyToHost(std::span(host[s]).first(copy.bytes), span);
            break;
          case EmulatedEngine::kDeviceToDevice:
            stream.CopyBetween(span, span);
            break;
        }
        events[s].push_back(machine.device(d).CreateEvent());
        stream.Record(*events[s].back());
        copies[s].push_back(copy);
      }
    }
    const std::vector<std::vector<int64_t>> ends = EndsOnPaper(copies, links);
    std::vector<std::pair<int64_t, Event*>> order;
    for (size_t s = 0; s < ends.size(); ++s) {
      for (size_t c = 0; c < ends[s].size(); ++c) {
        order.emplace_back(ends[s][c], events[s][c].get());
      }
    }
    std::sort(order.begin(), order.end());
    for (const auto& [end_ns, event] : order) {
      if (machine.NowNs() < end_ns) {
        machine.system().AdvanceNs(end_ns - 1 - machine.NowNs());
        ASSERT_EQ(event->Query(), State::kPending) << "schedule " << schedule;
        machine.system().AdvanceNs(1);
      }
      ASSERT_EQ(event->Query(), State::kComplete) << "schedule " << schedule;
    }
  }
}

// With the real clock only this can be promised whatever else the machine does: never too early.
TEST(EmulatedRealTimeTest, ACopyEndsNoEarlierThanTheModelSays) {
  EmulatedDeviceOptions options;
  options.capacity_bytes = 1 << 20;
  options.host_to_device = {1e9, 50};  // 1050 us for all of it
  EmulatedMachine machine(TestTime::kReal, 1, options);
  const DeviceBuffer buffer = *machine.device(0).Allocate(1 << 20);
  const std::vector<std::byte> host = RandomBytes(1 << 20, 1);
  const auto stream = machine.device(0).CreateStream();
  const int64_t begin_ns = machine.NowNs();
  for (int i = 0; i < 3; ++i)
    stream->CopyToDevice(buffer.Subspan(0, 1000000), std::span(host).first(1000000));
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_GE(machine.NowNs() - begin_ns, 3 * 1050 * 1000);
  EXPECT_GE(machine.device(0).counters(EmulatedEngine::kHostToDevice).busy_ns, 3 * 1050 * 1000);
}

TEST(EmulatedDeviceTest, MachinesDoNotReachEachOther) {
  EmulatedMachine a(TestTime::kVirtual, 2, SlowLinks());
  EmulatedMachine b(TestTime::kVirtual, 1, SlowLinks());
  EXPECT_TRUE(a.device(0).CanReach(a.device(1)));
  EXPECT_FALSE(a.device(0).CanReach(b.device(0)));
}

}  // namespace
}  // namespace moesaic
