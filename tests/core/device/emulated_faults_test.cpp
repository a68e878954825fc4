// Faults on demand: what fails, who is told, and what goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/core/device/emulated_machine.h"

namespace moesaic {
namespace {

using State = Event::State;

EmulatedDeviceOptions Links() {
  EmulatedDeviceOptions options;
  options.capacity_bytes = 1 << 20;
  options.host_to_device = {1e6, 0};  // 100 us for 100 bytes
  options.device_to_host = {1e6, 0};
  options.peer = {1e6, 0};
  return options;
}

class EmulatedFaultTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 100;

  EmulatedFaultTest()
      : buffer_(*machine_.device(0).Allocate(kBytes)),
        stream_(machine_.device(0).CreateStream()),
        event_(machine_.device(0).CreateEvent()) {}

  EmulatedDevice& device() { return machine_.device(0); }
  void Send() { stream_->CopyToDevice(buffer_.span(), sent_); }
  void Receive() { stream_->CopyToHost(received_, buffer_.span()); }

  EmulatedMachine machine_{TestTime::kVirtual, 2, Links()};
  const std::vector<std::byte> sent_ = RandomBytes(kBytes, 1);
  std::vector<std::byte> received_ = std::vector<std::byte>(kBytes);
  DeviceBuffer buffer_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
};

TEST_F(EmulatedFaultTest, AFailedCopyIsReportedByEventAndStream) {
  device().SetFaults({.failing_copies = {2}});
  Send();
  const auto good = device().CreateEvent();
  stream_->Record(*good);
  Send();
  stream_->Record(*event_);
  const std::optional<Error> error = event_->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kIo);
  EXPECT_NE(std::string(error->what()).find("copy 2 (100 bytes, host to device)"),
            std::string::npos)
      << error->what();
  EXPECT_EQ(machine_.NowNs(), 200 * 1000);  // a failing copy takes its time
  EXPECT_EQ(event_->Query(), State::kFailed);
  EXPECT_EQ(good->Query(), State::kComplete);
  EXPECT_TRUE(stream_->Synchronize().has_value());
  const EmulatedEngineCounters counters = device().counters(EmulatedEngine::kHostToDevice);
  EXPECT_EQ(counters.copies, 2u);
  EXPECT_EQ(counters.failed, 1u);
  EXPECT_EQ(counters.bytes, kBytes);
  EXPECT_THROW(ThrowIfFailed(event_->Synchronize()), Error);
}

TEST_F(EmulatedFaultTest, WhatFollowsAFailureIsSkippedAndTold) {
  device().SetFaults({.failing_copies = {1}});
  Send();
  Receive();
  std::vector<ErrorKind> told;
  stream_->Call([&](const Error* error) {
    if (error != nullptr) told.push_back(error->kind());
  });
  EXPECT_TRUE(stream_->Synchronize().has_value());
  EXPECT_EQ(told, (std::vector<ErrorKind>{ErrorKind::kIo}));
  EXPECT_EQ(received_, std::vector<std::byte>(kBytes));
  EXPECT_EQ(machine_.NowNs(), 100 * 1000);
  stream_->ClearError();
  Receive();
  EXPECT_FALSE(stream_->Synchronize().has_value());
  EXPECT_NE(received_, sent_);  // a failed copy is not by chance a good one
}

TEST_F(EmulatedFaultTest, AClearedStreamTriesAgain) {
  device().SetFaults({.failing_copies = {1}});
  Send();
  stream_->Record(*event_);
  EXPECT_TRUE(event_->Synchronize().has_value());
  stream_->ClearError();
  Send();
  Receive();
  stream_->Record(*event_);
  EXPECT_FALSE(event_->Synchronize().has_value());
  EXPECT_EQ(event_->Query(), State::kComplete);
  EXPECT_FALSE(stream_->Synchronize().has_value());
  EXPECT_EQ(received_, sent_);
}

TEST_F(EmulatedFaultTest, ErrorsAreClearedInTheOrderOfTheStream) {
  device().SetFaults({.failing_copies = {2}});
  Send();
  stream_->ClearError();
  Send();  // fails behind the place that clears
  EXPECT_TRUE(stream_->Synchronize().has_value());
  stream_->ClearError();
  EXPECT_FALSE(stream_->Synchronize().has_value());
}

TEST_F(EmulatedFaultTest, AStreamThatWaitsForAFailureFailsToo) {
  device().SetFaults({.failing_copies = {1}});
  const auto other = machine_.device(1).CreateStream();
  Send();
  stream_->Record(*event_);
  other->Wait(*event_);
  EXPECT_EQ(other->Synchronize()->kind(), ErrorKind::kIo);
  other->ClearError();
  EXPECT_FALSE(other->Synchronize().has_value());
}

TEST_F(EmulatedFaultTest, AnIndependentStreamGoesOn) {
  device().SetFaults({.failing_copies = {1}});
  Send();
  const auto other = device().CreateStream();
  const DeviceBuffer others = *device().Allocate(kBytes);  // not what the first stream writes
  other->CopyToHost(received_, others.span());
  EXPECT_FALSE(other->Synchronize().has_value());
  EXPECT_TRUE(stream_->Synchronize().has_value());
}

// The numbers of the copies that fail, of 1000.
std::vector<int> Failures(double probability, uint64_t seed) {
  EmulatedDeviceOptions options = Links();
  options.faults = {.copy_failure_probability = probability, .seed = seed};
  EmulatedMachine machine(TestTime::kVirtual, 1, options);
  const DeviceBuffer buffer = *machine.device(0).Allocate(1);
  const std::vector<std::byte> byte(1);
  const auto stream = machine.device(0).CreateStream();
  const auto event = machine.device(0).CreateEvent();
  std::vector<int> failures;
  for (int i = 0; i < 1000; ++i) {
    stream->CopyToDevice(buffer.span(), byte);
    stream->Record(*event);
    if (event->Synchronize()) failures.push_back(i);
    stream->ClearError();
  }
  return failures;
}

TEST(EmulatedRandomFaultTest, ProbabilityBySeed) {
  const std::vector<int> failures = Failures(0.1, 5);
  EXPECT_GT(failures.size(), 60u);  // more than four standard deviations from the mean of 100
  EXPECT_LT(failures.size(), 140u);
  EXPECT_EQ(Failures(0.1, 5), failures);
  EXPECT_NE(Failures(0.1, 6), failures);
  EXPECT_TRUE(Failures(0, 5).empty());
  EXPECT_EQ(Failures(1, 5).size(), 1000u);
}

TEST_F(EmulatedFaultTest, AStallHoldsUpItsLink) {
  device().SetFaults({.stalls = {{1, 5000}}});
  Send();
  stream_->Record(*event_);
  const auto other = device().CreateStream();
  other->CopyToDevice(buffer_.span(), sent_);
  machine_.system().AdvanceNs(5100 * 1000 - 1);
  EXPECT_EQ(event_->Query(), State::kPending);
  machine_.system().AdvanceNs(1);
  EXPECT_EQ(event_->Query(), State::kComplete);
  EXPECT_FALSE(other->Synchronize().has_value());
  EXPECT_EQ(machine_.NowNs(), 5200 * 1000);
}

TEST_F(EmulatedFaultTest, AllocationsBeyondANumberAreRefused) {
  device().SetFaults({.granted_allocations = 2});
  const std::optional<DeviceBuffer> a = device().Allocate(100);
  std::optional<DeviceBuffer> b = device().Allocate(100);
  EXPECT_TRUE(a && b);
  EXPECT_FALSE(device().Allocate(100).has_value());
  b.reset();
  EXPECT_FALSE(device().Allocate(100).has_value());
  EXPECT_EQ(device().used_bytes(), 2u * Device::kAlignment);  // a and the fixture's
  device().SetFaults({});
  EXPECT_TRUE(device().Allocate(100).has_value());
}

TEST_F(EmulatedFaultTest, ALostDeviceFailsWhatMovesAndAllThatComes) {
  Send();
  stream_->Record(*event_);
  Receive();
  machine_.system().AdvanceUs(50);
  device().Lose();
  EXPECT_EQ(event_->Synchronize()->kind(), ErrorKind::kUnavailable);
  EXPECT_EQ(machine_.NowNs(), 50 * 1000);  // at once
  EXPECT_TRUE(stream_->Synchronize().has_value());
  stream_->ClearError();
  Receive();
  EXPECT_EQ(stream_->Synchronize()->kind(), ErrorKind::kUnavailable);
  EXPECT_EQ(received_, std::vector<std::byte>(kBytes));
  EXPECT_EQ(device().lost()->kind(), ErrorKind::kUnavailable);
  EXPECT_FALSE(device().Allocate(1).has_value());
  bool told = false;
  stream_->Call([&](const Error* error) { told = error != nullptr; });
  EXPECT_TRUE(stream_->Synchronize().has_value());
  EXPECT_TRUE(told);
  buffer_.Reset();  // memory is given back all the same
  EXPECT_EQ(device().used_bytes(), 0u);
}

TEST_F(EmulatedFaultTest, ALostDeviceWaitsForNoWord) {
  const uint32_t word = 0;
  const auto stream = device().CreateStream();
  const auto event = device().CreateEvent();
  stream->WaitValue(&word, 1);
  stream->Record(*event);
  EXPECT_EQ(event->Query(), Event::State::kPending);
  device().Lose();
  const auto error = event->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kUnavailable);
  stream->WaitValue(&word, 1);
  EXPECT_TRUE(stream->Synchronize().has_value());
}

TEST_F(EmulatedFaultTest, PeersOfALostDeviceLive) {
  device().SetFaults({.lost_at_copy = 2});
  const DeviceBuffer far = *machine_.device(1).Allocate(kBytes);
  const auto far_stream = machine_.device(1).CreateStream();
  Send();
  EXPECT_FALSE(stream_->Synchronize().has_value());
  far_stream->CopyBetween(far.span(), buffer_.span());
  machine_.system().AdvanceUs(50);
  Send();
  EXPECT_EQ(far_stream->Synchronize()->kind(), ErrorKind::kUnavailable);
  EXPECT_EQ(stream_->Synchronize()->kind(), ErrorKind::kUnavailable);
  EXPECT_FALSE(machine_.device(1).lost().has_value());
  far_stream->ClearError();
  far_stream->CopyToDevice(far.span(), sent_);
  far_stream->CopyToHost(received_, far.span());
  EXPECT_FALSE(far_stream->Synchronize().has_value());
  EXPECT_EQ(received_, sent_);
}

TEST_F(EmulatedFaultTest, AHostFunctionThatThrowsFailsItsStream) {
  stream_->Call([](const Error*) { throw std::logic_error("oops"); });
  Send();
  const std::optional<Error> error = stream_->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kInternal);
  EXPECT_NE(std::string(error->what()).find("oops"), std::string::npos);
  stream_->ClearError();
  Send();
  EXPECT_FALSE(stream_->Synchronize().has_value());
}

// Threads go on queueing, waiting and allocating while devices fail under them: everybody gets an
// answer, and what was reported as good is good.
TEST(EmulatedFaultConcurrencyTest, EveryWaitEnds) {
  EmulatedDeviceOptions options = Links();
  options.host_to_device = options.device_to_host = options.peer = {20e9, 1};
  options.faults = {.copy_failure_probability = 0.1, .seed = 3};
  EmulatedMachine machine(TestTime::kReal, 2, options);
  std::atomic<int> good{0};
  std::atomic<int> failed{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      EmulatedDevice& device = machine.device(t % 2);
      const auto stream = device.CreateStream();
      const auto event = device.CreateEvent();
      for (int round = 0; round < 100; ++round) {
        const std::optional<DeviceBuffer> buffer = device.Allocate(20000);
        if (!buffer) {
          ++failed;
          continue;
        }
        const auto sent =
            RandomBytes(20000, 1000 * static_cast<uint64_t>(t) + static_cast<uint64_t>(round));
        std::vector<std::byte> received(20000);
        stream->CopyToDevice(buffer->span(), sent);
        stream->CopyToHost(received, buffer->span());
        stream->Record(*event);
        if (event->Synchronize()) {
          ++failed;
          stream->ClearError();
        } else {
          ++good;
          if (received != sent) ++wrong;
        }
        if (t == 0 && round == 50) device.Lose();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(good + failed, 400);
  EXPECT_GE(failed, 49);  // thread 0 after the loss
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace moesaic
