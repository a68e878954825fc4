#include "tests/core/device/device_contract.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/device/pinned_host_pool.h"

namespace moesaic {
namespace {

DeviceBuffer MustAllocate(Device& device, uint64_t bytes) {
  std::optional<DeviceBuffer> buffer = device.Allocate(bytes);
  EXPECT_TRUE(buffer.has_value());
  return buffer ? std::move(*buffer) : DeviceBuffer();
}

std::vector<std::byte> ReadBack(Stream& stream, const DeviceSpan& span) {
  std::vector<std::byte> bytes(span.bytes());
  stream.CopyToHost(bytes, span);
  EXPECT_FALSE(stream.Synchronize().has_value());
  return bytes;
}

TEST_P(DeviceContract, DescribesItself) {
  const auto machine = Make();
  Device& device = machine->device(0);
  EXPECT_FALSE(device.name().empty());
  EXPECT_GE(device.numa_node(), -1);
  EXPECT_EQ(device.capacity_bytes(), kCapacityBytes);
  EXPECT_TRUE(device.CanReach(device));
  EXPECT_FALSE(device.lost().has_value());
  EXPECT_EQ(&device.CreateStream()->device(), &device);
}

TEST_P(DeviceContract, LedgerCountsWhatIsHandedOut) {
  const auto machine = Make();
  Device& device = machine->device(0);
  EXPECT_EQ(device.free_bytes(), kCapacityBytes);
  DeviceBuffer a = MustAllocate(device, 1);
  EXPECT_EQ(a.bytes(), 1u);
  EXPECT_EQ(a.device(), &device);
  EXPECT_EQ(device.used_bytes(), Device::kAlignment);
  {
    const DeviceBuffer b = MustAllocate(device, Device::kAlignment + 1);
    EXPECT_EQ(device.used_bytes(), 3 * Device::kAlignment);
    EXPECT_EQ(device.used_bytes() + device.free_bytes(), kCapacityBytes);
  }
  EXPECT_EQ(device.used_bytes(), Device::kAlignment);
  a.Reset();
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(device.used_bytes(), 0u);
}

TEST_P(DeviceContract, BuffersAreAligned) {
  const auto machine = Make();
  std::vector<DeviceBuffer> buffers;
  buffers.reserve(5);
  for (const uint64_t bytes : {1, 255, 256, 257, 4097}) {
    buffers.push_back(MustAllocate(machine->device(0), bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back().data()) % Device::kAlignment, 0u);
  }
}

TEST_P(DeviceContract, MovedBuffersAreAccountedOnce) {
  const auto machine = Make();
  Device& device = machine->device(0);
  DeviceBuffer a = MustAllocate(device, 1000);
  const std::byte* data = a.data();
  DeviceBuffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(device.used_bytes(), 1024u);
  b = MustAllocate(device, 256);
  b = DeviceBuffer();
  EXPECT_EQ(device.used_bytes(), 0u);
}

TEST_P(DeviceContract, OutOfMemoryIsAnAnswer) {
  const auto machine = Make();
  Device& device = machine->device(0);
  EXPECT_FALSE(device.Allocate(kCapacityBytes + 1).has_value());
  EXPECT_FALSE(device.Allocate(UINT64_MAX).has_value());
  std::optional<DeviceBuffer> all = device.Allocate(kCapacityBytes);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(device.free_bytes(), 0u);
  EXPECT_EQ(device.largest_free_bytes(), 0u);
  EXPECT_FALSE(device.Allocate(1).has_value());
  const std::optional<DeviceBuffer> nothing = device.Allocate(0);
  ASSERT_TRUE(nothing.has_value());
  EXPECT_EQ(nothing->bytes(), 0u);
  all.reset();
  EXPECT_TRUE(device.Allocate(kCapacityBytes).has_value());
}

TEST_P(DeviceContract, FreeNeighboursMerge) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const uint64_t quarter = kCapacityBytes / 4;
  std::vector<DeviceBuffer> buffers;
  buffers.reserve(5);
  for (int i = 0; i < 4; ++i) buffers.push_back(MustAllocate(device, quarter));
  buffers[0].Reset();
  buffers[2].Reset();
  EXPECT_EQ(device.free_bytes(), 2 * quarter);
  EXPECT_EQ(device.largest_free_bytes(), quarter);
  EXPECT_FALSE(device.Allocate(quarter + 1).has_value());
  buffers[1].Reset();
  EXPECT_EQ(device.largest_free_bytes(), 3 * quarter);
  EXPECT_TRUE(device.Allocate(3 * quarter).has_value());
}

TEST_P(DeviceContract, RoundTripsOfAnySizeAndOffset) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto stream = device.CreateStream();
  const DeviceBuffer buffer = MustAllocate(device, uint64_t{1} << 20);
  for (const uint64_t bytes : {1, 3, 64, 4095, 65537, (1 << 20) - 777}) {
    for (const uint64_t offset : {0, 1, 777}) {
      const std::vector<std::byte> sent = RandomBytes(bytes, bytes + offset);
      stream->CopyToDevice(buffer.Subspan(offset, bytes), sent);
      ASSERT_EQ(ReadBack(*stream, buffer.Subspan(offset, bytes)), sent);
    }
  }
}

TEST_P(DeviceContract, CopyingNothingIsFine) {
  const auto machine = Make();
  const auto stream = machine->device(0).CreateStream();
  const DeviceBuffer buffer = MustAllocate(machine->device(0), 256);
  stream->CopyToDevice(buffer.Subspan(256, 0), {});
  stream->CopyToHost({}, buffer.Subspan(0, 0));
  EXPECT_FALSE(stream->Synchronize().has_value());
}

TEST_P(DeviceContract, AStreamKeepsItsOrder) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto stream = device.CreateStream();
  const DeviceBuffer buffer = MustAllocate(device, 4096);
  std::vector<std::vector<std::byte>> sent;
  sent.reserve(20);
  std::vector<std::vector<std::byte>> received(20, std::vector<std::byte>(4096));
  for (size_t i = 0; i < received.size(); ++i) sent.push_back(RandomBytes(4096, i));
  for (size_t i = 0; i < received.size(); ++i) {
    stream->CopyToDevice(buffer.span(), sent[i]);
    stream->CopyToHost(received[i], buffer.span());
  }
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceContract, NothingBlocksTheHostWhileAStreamIsHeldUp) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto stream = device.CreateStream();
  const auto event = device.CreateEvent();
  const DeviceBuffer buffer = MustAllocate(device, 4096);
  const std::vector<std::byte> sent = RandomBytes(4096, 1);
  std::vector<std::byte> received(4096);
  Gate gate;
  stream->Call([&gate](const Error*) { gate.Pass(); });
  stream->CopyToDevice(buffer.span(), sent);
  stream->CopyToHost(received, buffer.span());
  stream->Record(*event);
  EXPECT_EQ(event->Query(), Event::State::kPending);
  EXPECT_FALSE(stream->Idle());
  EXPECT_EQ(received, std::vector<std::byte>(4096));
  gate.Open();
  EXPECT_FALSE(event->Synchronize().has_value());
  EXPECT_EQ(event->Query(), Event::State::kComplete);
  EXPECT_EQ(received, sent);
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_TRUE(stream->Idle());
}

TEST_P(DeviceContract, HostFunctionsRunOnceInOrderElsewhere) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto stream = device.CreateStream();
  const DeviceBuffer buffer = MustAllocate(device, 64);
  std::vector<int> order;
  std::vector<std::byte> received(64);
  std::byte seen{0};
  const std::vector<std::byte> sent(64, std::byte{42});
  std::thread::id thread;
  for (int i = 0; i < 10; ++i) {
    stream->Call([&order, i](const Error* error) { order.push_back(error == nullptr ? i : -1); });
  }
  stream->CopyToDevice(buffer.span(), sent);
  stream->CopyToHost(received, buffer.span());
  stream->Call([&](const Error*) {
    seen = received[63];
    thread = std::this_thread::get_id();
  });
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(seen, std::byte{42});
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST_P(DeviceContract, AnEventThatWasNeverRecordedIsComplete) {
  const auto machine = Make();
  const auto stream = machine->device(0).CreateStream();
  const auto event = machine->device(0).CreateEvent();
  EXPECT_EQ(event->Query(), Event::State::kComplete);
  EXPECT_FALSE(event->Synchronize().has_value());
  stream->Wait(*event);
  EXPECT_FALSE(stream->Synchronize().has_value());
}

TEST_P(DeviceContract, EventsAreReusable) {
  const auto machine = Make();
  const auto stream = machine->device(0).CreateStream();
  const auto event = machine->device(0).CreateEvent();
  int calls = 0;
  for (int round = 1; round <= 5; ++round) {
    Gate gate;
    stream->Call([&](const Error*) {
      gate.Pass();
      ++calls;
    });
    stream->Record(*event);
    EXPECT_EQ(event->Query(), Event::State::kPending);
    gate.Open();
    EXPECT_FALSE(event->Synchronize().has_value());
    EXPECT_EQ(calls, round);
    EXPECT_EQ(event->Query(), Event::State::kComplete);
  }
}

TEST_P(DeviceContract, AStreamWaitsForTheRecordOfAnother) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto writer = device.CreateStream();
  const auto reader = device.CreateStream();
  const auto event = device.CreateEvent();
  const DeviceBuffer buffer = MustAllocate(device, 4096);
  const std::vector<std::byte> sent = RandomBytes(4096, 2);
  std::vector<std::byte> received(4096);
  Gate gate;
  writer->Call([&gate](const Error*) { gate.Pass(); });
  writer->CopyToDevice(buffer.span(), sent);
  writer->Record(*event);
  reader->Wait(*event);
  reader->CopyToHost(received, buffer.span());
  EXPECT_FALSE(reader->Idle());
  gate.Open();
  EXPECT_FALSE(reader->Synchronize().has_value());
  EXPECT_EQ(received, sent);
}

// The record that counts is the one that the stream was told to wait for: here the later record of
// the same event waits for the stream, and would hold it up for ever.
TEST_P(DeviceContract, AWaitIsForTheRecordOfItsTime) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto a = device.CreateStream();
  const auto b = device.CreateStream();
  const auto event = device.CreateEvent();
  const auto received_event = device.CreateEvent();
  const DeviceBuffer buffer = MustAllocate(device, 64);
  const std::vector<std::byte> sent(64, std::byte{7});
  std::vector<std::byte> received(64);
  Gate gate;  // until all is queued
  a->Call([&gate](const Error*) { gate.Pass(); });
  a->CopyToDevice(buffer.span(), sent);
  a->Record(*event);
  b->Wait(*event);
  b->CopyToHost(received, buffer.span());
  b->Record(*received_event);
  a->Wait(*received_event);
  a->Record(*event);
  gate.Open();
  EXPECT_FALSE(event->Synchronize().has_value());
  EXPECT_EQ(received_event->Query(), Event::State::kComplete);
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceContract, AnEventMayGoBeforeItsRecordCompletes) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto a = device.CreateStream();
  const auto b = device.CreateStream();
  Gate gate;
  std::atomic<bool> passed{false};
  a->Call([&](const Error*) {
    gate.Pass();
    passed = true;
  });
  auto event = device.CreateEvent();
  a->Record(*event);
  b->Wait(*event);
  bool after = false;
  b->Call([&](const Error*) { after = passed; });
  event.reset();
  gate.Open();
  EXPECT_FALSE(b->Synchronize().has_value());
  EXPECT_TRUE(after);
}

TEST_P(DeviceContract, AStreamThatGoesWaitsForItsWork) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const DeviceBuffer buffer = MustAllocate(device, 4096);
  const std::vector<std::byte> sent = RandomBytes(4096, 3);
  std::vector<std::byte> received(4096);
  {
    const auto stream = device.CreateStream();
    stream->CopyToDevice(buffer.span(), sent);
    stream->CopyToHost(received, buffer.span());
  }
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceContract, CopiesWithinTheDevice) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto stream = device.CreateStream();
  const DeviceBuffer a = MustAllocate(device, 5000);
  const DeviceBuffer b = MustAllocate(device, 5000);
  const std::vector<std::byte> sent = RandomBytes(5000, 4);
  stream->CopyToDevice(a.span(), sent);
  stream->CopyBetween(b.Subspan(1, 4999), a.Subspan(0, 4999));
  EXPECT_EQ(ReadBack(*stream, b.Subspan(1, 4999)),
            std::vector<std::byte>(sent.begin(), sent.end() - 1));
}

TEST_P(DeviceContract, CopiesToAndFromAPeer) {
  if (GetParam().max_devices < 2) GTEST_SKIP() << "one device";
  const auto machine = Make(2);
  Device& near = machine->device(0);
  Device& far = machine->device(1);
  ASSERT_TRUE(near.CanReach(far));
  const auto stream = near.CreateStream();
  const DeviceBuffer a = MustAllocate(near, 5000);
  const DeviceBuffer b = MustAllocate(far, 5000);
  const DeviceBuffer c = MustAllocate(near, 5000);
  const std::vector<std::byte> sent = RandomBytes(5000, 5);
  stream->CopyToDevice(a.span(), sent);
  stream->CopyBetween(b.span(), a.span());
  stream->CopyBetween(c.span(), b.span());
  EXPECT_EQ(ReadBack(*stream, c.span()), sent);
  const auto far_stream = far.CreateStream();
  EXPECT_EQ(ReadBack(*far_stream, b.span()), sent);
}

TEST_P(DeviceContract, EventsOrderStreamsOfDifferentDevices) {
  if (GetParam().max_devices < 2) GTEST_SKIP() << "one device";
  const auto machine = Make(2);
  Device& near = machine->device(0);
  Device& far = machine->device(1);
  const auto near_stream = near.CreateStream();
  const auto far_stream = far.CreateStream();
  const auto event = near.CreateEvent();
  const DeviceBuffer a = MustAllocate(near, 4096);
  const DeviceBuffer b = MustAllocate(far, 4096);
  const std::vector<std::byte> sent = RandomBytes(4096, 6);
  std::vector<std::byte> received(4096);
  Gate gate;
  near_stream->Call([&gate](const Error*) { gate.Pass(); });
  near_stream->CopyToDevice(a.span(), sent);
  near_stream->CopyBetween(b.span(), a.span());
  near_stream->Record(*event);
  far_stream->Wait(*event);
  far_stream->CopyToHost(received, b.span());
  gate.Open();
  EXPECT_FALSE(far_stream->Synchronize().has_value());
  EXPECT_EQ(received, sent);
}

TEST_P(DeviceContract, CopiesFromAndToAPinnedPool) {
  const auto machine = Make();
  Device& device = machine->device(0);
  PinnedHostPool pool(64 * 1024, device.numa_node(), device.host_pinner());
  const auto stream = device.CreateStream();
  const DeviceBuffer buffer = MustAllocate(device, 10000);
  const std::optional<HostBuffer> out = pool.Allocate(10000);
  const std::optional<HostBuffer> in = pool.Allocate(10000);
  ASSERT_TRUE(out && in);
  const std::vector<std::byte> sent = RandomBytes(10000, 7);
  std::copy(sent.begin(), sent.end(), out->data());
  stream->CopyToDevice(buffer.span(), out->span());
  stream->CopyToHost(in->span(), buffer.span());
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), in->data()));
}

// What lies at the addresses is read at each replay.
TEST_P(DeviceContract, AGraphIsReplayed) {
  const auto machine = Make();
  Device& device = machine->device(0);
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  const std::optional<HostBuffer> in = pool.Allocate(4096);
  const std::optional<HostBuffer> out = pool.Allocate(4096);
  ASSERT_TRUE(in.has_value() && out.has_value());
  const DeviceBuffer a = MustAllocate(device, 4096);
  const DeviceBuffer b = MustAllocate(device, 4096);
  const std::vector<std::byte> untouched = RandomBytes(4096, 20);
  std::copy(untouched.begin(), untouched.end(), out->data());
  const auto stream = device.CreateStream();
  stream->BeginCapture();
  stream->CopyToDevice(a.span(), in->span());
  stream->CopyBetween(b.span(), a.span());
  stream->CopyToHost(out->span(), b.span());
  const std::unique_ptr<Graph> graph = stream->EndCapture();
  ASSERT_NE(graph, nullptr);
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_TRUE(std::equal(untouched.begin(), untouched.end(), out->data()));

  const auto other = device.CreateStream();
  const auto event = device.CreateEvent();
  for (const uint64_t seed : {21, 22, 23}) {
    const std::vector<std::byte> sent = RandomBytes(4096, seed);
    std::copy(sent.begin(), sent.end(), in->data());
    Stream& each = seed == 22 ? *other : *stream;
    each.Replay(*graph);
    each.Record(*event);
    EXPECT_FALSE(event->Synchronize().has_value());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), out->data())) << seed;
  }
}

TEST_P(DeviceContract, AStreamInErrorReplaysNothing) {
  const auto machine = Make();
  Device& device = machine->device(0);
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  const std::optional<HostBuffer> in = pool.Allocate(512);
  ASSERT_TRUE(in.has_value());
  const std::vector<std::byte> sent = RandomBytes(512, 24);
  std::copy(sent.begin(), sent.end(), in->data());
  const DeviceBuffer buffer = MustAllocate(device, 512);
  const auto stream = device.CreateStream();
  const std::vector<std::byte> before = RandomBytes(512, 25);
  stream->CopyToDevice(buffer.span(), before);
  EXPECT_FALSE(stream->Synchronize().has_value());
  stream->BeginCapture();
  stream->CopyToDevice(buffer.span(), in->span());
  const std::unique_ptr<Graph> graph = stream->EndCapture();
  ASSERT_NE(graph, nullptr);
  stream->Call([](const Error*) { throw std::runtime_error("on purpose"); });
  EXPECT_TRUE(stream->Synchronize().has_value());
  stream->Replay(*graph);
  EXPECT_TRUE(stream->Synchronize().has_value());
  stream->ClearError();
  EXPECT_EQ(ReadBack(*stream, buffer.span()), before);
  stream->Replay(*graph);
  EXPECT_EQ(ReadBack(*stream, buffer.span()), sent);
}

TEST_P(DeviceContract, OnlyCopiesAndKernelsAreRecorded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto die = [this](const std::function<void(Stream&, Event&)>& queue) {
    const auto machine = Make();
    const auto event = machine->device(0).CreateEvent();
    const auto stream = machine->device(0).CreateStream();
    stream->Record(*event);
    stream->BeginCapture();
    queue(*stream, *event);
  };
  EXPECT_DEATH(die([](Stream& stream, Event& event) { stream.Record(event); }), "");
  EXPECT_DEATH(die([](Stream& stream, Event& event) { stream.Wait(event); }), "");
  EXPECT_DEATH(die([](Stream& stream, Event&) { stream.Call([](const Error*) {}); }), "");
  EXPECT_DEATH(die([](Stream& stream, Event&) { stream.ClearError(); }), "");
}

TEST_P(DeviceContract, AKernelThatCannotBeLaunchedFailsItsStream) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto stream = device.CreateStream();
  const DeviceBuffer buffer = MustAllocate(device, 4096);
  const std::vector<std::byte> sent = RandomBytes(4096, 13);
  int launched = 0;
  const auto launch = [&launched](CUstream_st*) -> LaunchResult {
    ++launched;
    return {};
  };
  stream->Launch(launch);
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_EQ(launched, 1);
  stream->Launch([](CUstream_st*) -> LaunchResult {
    return {.code = 9, .kernel = "test kernel", .message = "invalid configuration"};
  });
  stream->CopyToDevice(buffer.span(), sent);  // skipped, as is what follows
  stream->Launch(launch);
  const auto error = stream->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kInternal);
  EXPECT_NE(std::string(error->what()).find("test kernel"), std::string::npos);
  EXPECT_EQ(launched, 1);
  stream->ClearError();
  stream->CopyToDevice(buffer.span(), sent);
  stream->Launch(launch);
  EXPECT_EQ(ReadBack(*stream, buffer.span()), sent);
  EXPECT_EQ(launched, 2);
}

// Threads with streams of their own, and one stream that all of them use.
TEST_P(DeviceContract, ManyThreads) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const auto shared = device.CreateStream();
  std::atomic<int> shared_calls{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto stream = device.CreateStream();
      const auto event = device.CreateEvent();
      for (int round = 0; round < 25; ++round) {
        const std::optional<DeviceBuffer> buffer = device.Allocate(10000);
        if (!buffer) {
          ++wrong;
          return;
        }
        const auto sent =
            RandomBytes(10000, 100 * static_cast<uint64_t>(t) + static_cast<uint64_t>(round));
        std::vector<std::byte> received(10000);
        stream->CopyToDevice(buffer->span(), sent);
        stream->Record(*event);
        shared->Wait(*event);
        shared->CopyToHost(received, buffer->span());
        shared->Call([&](const Error* error) { shared_calls += error == nullptr ? 1 : 0; });
        const auto read = device.CreateEvent();
        shared->Record(*read);
        if (read->Synchronize() || received != sent) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared->Synchronize().has_value());
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(shared_calls, 100);
  EXPECT_EQ(device.used_bytes(), 0u);
}

TEST_P(DeviceContract, MisuseIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto machine = Make();
        const DeviceBuffer buffer = *machine->device(0).Allocate(100);
        buffer.Subspan(50, 51);
      },
      "51");
  EXPECT_DEATH(
      {
        const auto machine = Make();
        const DeviceBuffer buffer = *machine->device(0).Allocate(100);
        std::vector<std::byte> shorter(99);
        machine->device(0).CreateStream()->CopyToHost(shorter, buffer.span());
      },
      "99");
  EXPECT_DEATH(
      {
        DeviceBuffer buffer;
        const auto machine = Make();
        buffer = *machine->device(0).Allocate(100);
        // The machine goes first.
      },
      "used_bytes");
}

}  // namespace
}  // namespace moesaic
