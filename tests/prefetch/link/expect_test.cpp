// Expect: what a later layer wants for certain comes behind what the open layer waits for, stays
// until then, and yields to a layer that cannot get slots otherwise.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "prefetch/link/device_experts.h"
#include "prefetch/link/expert_flow.h"
#include "prefetch/link/expert_loader.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/device/emulated_machine.h"
#include "tests/prefetch/fake_reader.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

constexpr uint64_t kBlobBytes = 4096;

TestSourceShape Direct() {
  TestSourceShape shape;
  shape.piece_bytes = {kBlobBytes};  // an expert is a packet
  shape.direct = true;
  shape.head_bytes = 0;
  shape.files = 1;
  return shape;
}

class ExpectTest : public testing::Test {
 protected:
  void Open(int64_t slots, int depth = 4) {
    loader_.reset();  // its reads are on the same disk
    ExpertLoaderOptions options;
    options.budget_bytes = static_cast<uint64_t>(slots) * source_.layout().slot_bytes;
    options.packet_bytes = kBlobBytes;
    options.depth = depth;
    options.max_retries = 5;
    loader_ = std::make_unique<ExpertLoader>(source_, 4, 8, MakeLruPolicy(32), options,
                                             std::make_unique<ManualReader>(disk_, depth, true));
  }
  ~ExpectTest() override { disk_.SetAutomatic(true); }

  // Which experts the waiting reads are of, oldest first.
  std::vector<ExpertId> Reading(size_t reads) {
    std::vector<ExpertId> ids;
    for (const ReadRequest& request : disk_.WaitForPending(reads)) {
      for (const ExpertId id : source_.AllIds()) {
        if (source_.Extents(id)[0].offset == request.offset) ids.push_back(id);
      }
    }
    return ids;
  }
  // Takes and releases experts until `count` were handed out.
  void Use(size_t count) {
    std::vector<PinnedExpert> ready;
    for (size_t used = 0; used < count; used += ready.size()) {
      ready.clear();
      ASSERT_TRUE(loader_->NextReady(ready));
      for (const PinnedExpert& pinned : ready) {
        EXPECT_TRUE(source_.IsBlobOf(pinned.id, pinned.blob));
        loader_->Release(pinned);
      }
    }
  }
  ExpertStats RunLayer(const std::vector<ExpertId>& needed) {
    loader_->BeginLayer(needed);
    Use(needed.size());
    return loader_->EndLayer();
  }
  void WaitForResidents(int64_t residents) {
    while (loader_->resident() < residents) std::this_thread::yield();
  }

  TestSource source_{Direct()};
  ManualDisk disk_{source_.Contents()};
  std::unique_ptr<ExpertLoader> loader_;
};

TEST_F(ExpectTest, ComesBehindTheLayerAndIsThereForTheNext) {
  Open(8, 2);
  disk_.SetAutomatic(false);
  loader_->BeginLayer(source_.Ids(0, {0, 1, 2}));
  loader_->Expect(source_.Ids(1, {4, 5}));
  // Two reads are in flight at once; the layer's third goes before what is expected.
  EXPECT_EQ(Reading(2), source_.Ids(0, {0, 1}));
  disk_.Complete(2);
  EXPECT_EQ(Reading(2), (std::vector{source_.Id(0, 2), source_.Id(1, 4)}));
  disk_.SetAutomatic(true);
  Use(3);
  const ExpertStats first = loader_->EndLayer();
  EXPECT_EQ(first.misses, 3u);
  EXPECT_EQ(first.fetched_early, 2u);
  WaitForResidents(5);
  const uint64_t reads = disk_.submitted();
  const ExpertStats second = RunLayer(source_.Ids(1, {4, 5}));
  EXPECT_EQ(second.hits, 2u);
  EXPECT_EQ(disk_.submitted(), reads);
}

TEST_F(ExpectTest, ALayerThatEndsLeavesItAlone) {
  Open(8, 1);
  disk_.SetAutomatic(false);
  loader_->BeginLayer(source_.Ids(0, {0}));
  loader_->Expect(source_.Ids(1, {4, 5}));
  disk_.WaitForPending(1);
  disk_.Complete();
  Use(1);
  loader_->EndLayer();  // 5 waits, nothing of it was read
  EXPECT_EQ(Reading(1), source_.Ids(1, {4}));
  disk_.Complete();
  EXPECT_EQ(Reading(1), source_.Ids(1, {5}));
  // The layer finds one there and one on its way.
  disk_.SetAutomatic(true);
  const ExpertStats stats = RunLayer(source_.Ids(1, {4, 5}));
  EXPECT_EQ(stats.misses, 0u);
  EXPECT_EQ(stats.hits + stats.late_hits, 2u);
}

TEST_F(ExpectTest, StaysWhileOthersCome) {
  Open(3);
  RunLayer(source_.Ids(1, {7}));  // the oldest, and so the first to leave
  loader_->Expect(source_.Ids(1, {7}));
  for (int e = 0; e < 8; ++e) RunLayer(source_.Ids(0, {e}));
  EXPECT_TRUE(loader_->IsResident(source_.Id(1, 7)));
  loader_->Expect({});
  RunLayer(source_.Ids(2, {0, 1, 2}));
  EXPECT_FALSE(loader_->IsResident(source_.Id(1, 7)));
}

// A layer that runs in several parts keeps what the next part wants, while others come.
TEST_F(ExpectTest, ExpertsOfTheOpenLayerStayBehindIt) {
  Open(4);
  loader_->BeginLayer(source_.Ids(0, {0, 1}));
  std::vector<ExpertId> expected = source_.Ids(0, {0, 1});
  for (const ExpertId id : source_.Ids(1, {0, 1})) expected.push_back(id);
  loader_->Expect(expected);
  Use(2);
  loader_->EndLayer();
  WaitForResidents(4);
  for (int e = 2; e < 5; ++e) RunLayer(source_.Ids(2, {e}));  // takes the slots of the last ones
  const ExpertStats again = RunLayer(source_.Ids(0, {0, 1}));
  EXPECT_EQ(again.hits, 2u);
  EXPECT_EQ(again.bytes_read, 0u);
  // Expected no more, while they are needed: they arrive all the same.
  Open(4);
  disk_.SetAutomatic(false);
  loader_->BeginLayer(source_.Ids(0, {2, 3}));
  loader_->Expect(source_.Ids(0, {2, 3}));
  loader_->Expect({});
  disk_.SetAutomatic(true);
  Use(2);
  EXPECT_EQ(loader_->EndLayer().misses, 2u);
}

TEST_F(ExpectTest, YieldsToALayerThatNeedsTheSlots) {
  Open(2);
  loader_->Expect(source_.Ids(1, {0, 1, 2, 3}));
  WaitForResidents(2);
  const ExpertStats stats = RunLayer(source_.Ids(0, {0, 1, 2}));
  EXPECT_EQ(stats.misses, 3u);
  // The same while the expected ones are being read.
  Open(2);
  disk_.SetAutomatic(false);
  loader_->Expect(source_.Ids(1, {0, 1}));
  disk_.WaitForPending(2);
  loader_->BeginLayer(source_.Ids(0, {0, 1}));
  disk_.SetAutomatic(true);
  Use(2);
  EXPECT_EQ(loader_->EndLayer().misses, 2u);
}

TEST_F(ExpectTest, SlotsThatAreReleasedServeIt) {
  Open(2);
  loader_->BeginLayer(source_.Ids(0, {0, 1}));
  std::vector<PinnedExpert> ready;
  while (ready.size() < 2) ASSERT_TRUE(loader_->NextReady(ready));
  const uint64_t reads = disk_.submitted();
  loader_->Expect(source_.Ids(1, {0, 1}));
  EXPECT_EQ(disk_.submitted(), reads);
  for (const PinnedExpert& pinned : ready) loader_->Release(pinned);
  EXPECT_EQ(loader_->EndLayer().fetched_early, 2u);
  while (!loader_->IsResident(source_.Id(1, 0)) || !loader_->IsResident(source_.Id(1, 1))) {
    std::this_thread::yield();
  }
}

TEST_F(ExpectTest, WhatIsExpectedNoMoreIsNotRead) {
  Open(8, 1);
  disk_.SetAutomatic(false);
  loader_->Expect(source_.Ids(1, {0, 1, 2}));
  disk_.WaitForPending(1);
  loader_->Expect(source_.Ids(2, {5}));
  disk_.Complete();
  EXPECT_EQ(Reading(1), source_.Ids(2, {5}));
  disk_.SetAutomatic(true);
  while (!loader_->IsResident(source_.Id(2, 5))) std::this_thread::yield();
  EXPECT_EQ(disk_.submitted(), 2u);
}

TEST_F(ExpectTest, AFailedReadIsTheLayersToTryAgain) {
  Open(8);
  disk_.SetFault([](const ReadRequest&) { return -EIO; });
  loader_->Expect(source_.Ids(1, {3}));
  while (loader_->transfer_counters().failed == 0) std::this_thread::yield();
  disk_.SetFault(nullptr);
  EXPECT_EQ(RunLayer(source_.Ids(1, {3})).misses, 1u);
}

// A copy is cancelled for a layer that lacks its slot, and the next layer begins before the packet
// in flight has come back: the copy counts as on its way, and then there is none. The layer that
// waits for it makes another.
TEST(ExpectedCopyTest, CancelledUnderALayerThatWaitsForIt) {
  constexpr ExpertIndex kCopy = 8;
  ExpertFlow flow(ExpertGrid(4, 8),
                  {.copies = std::vector<ExpertCopy>(32, {.packets = 2, .bytes = 2}),
                   .slots = 2,
                   .lanes = 3,
                   .max_packets = 2},
                  MakeLruPolicy(32), {});
  flow.Expect(std::vector{kCopy}, 1);
  const auto in_flight = flow.NextPacket(2);
  ASSERT_TRUE(in_flight && in_flight->expert == kCopy);
  flow.Expect({}, 3);
  flow.BeginLayer(std::vector<ExpertIndex>{0, 1}, 4);  // two slots, and the copy has one of them
  flow.StartLoads(5);
  ASSERT_TRUE(flow.queue().cancelling(kCopy));
  flow.EndLayer(6);

  flow.BeginLayer(std::vector{kCopy}, 7);
  EXPECT_EQ(flow.CompletePacket(*in_flight, PacketResult::kOk, 8), TransferState::kCancelled);
  flow.StartLoads(9);
  for (int packet = 0; packet < 2; ++packet) {
    const auto again = flow.NextPacket(10);
    ASSERT_TRUE(again && again->expert == kCopy);
    flow.CompletePacket(*again, PacketResult::kOk, 11);
  }
  flow.Commit(kCopy, 12);
  std::vector<ExpertIndex> ready;
  flow.TakeReady(ready, 13);
  EXPECT_EQ(ready, std::vector{kCopy});
  EXPECT_EQ(flow.waiting(), 0);
}

// Whatever is expected, right or wrong, before, in or after a layer: each layer gets its experts,
// once and whole.
TEST_F(ExpectTest, RandomExpectations) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto some = [&] {
    std::vector<int> indices;
    for (int e = 0; e < 8; ++e) {
      if (random() % 2 == 0) indices.push_back(e);
    }
    return source_.Ids(static_cast<int>(random() % 4), indices);
  };
  for (int round = 0; round < 40; ++round) {
    Open(1 + static_cast<int64_t>(random() % 10), 1 + static_cast<int>(random() % 5));
    std::mt19937_64 faults(seed + static_cast<uint64_t>(round));
    disk_.SetFault([&](const ReadRequest&) -> int64_t { return faults() % 64 == 0 ? -EIO : 0; });
    for (int step = 0; step < 40; ++step) {
      if (random() % 3 == 0) loader_->Expect(some());
      const std::vector<ExpertId> needed = some();
      loader_->BeginLayer(needed);
      if (random() % 3 != 0) loader_->Expect(some());
      std::set<ExpertId> seen;
      std::vector<PinnedExpert> ready;
      while (loader_->NextReady(ready)) {
        for (const PinnedExpert& pinned : ready) {
          EXPECT_TRUE(seen.insert(pinned.id).second);
          EXPECT_TRUE(source_.IsBlobOf(pinned.id, pinned.blob));
          loader_->Release(pinned);
        }
        ready.clear();
        if (random() % 8 == 0) loader_->Expect(some());
      }
      EXPECT_EQ(seen, std::set<ExpertId>(needed.begin(), needed.end()));
      loader_->EndLayer();
    }
    disk_.SetFault(nullptr);
    if (testing::Test::HasFailure()) return;
  }
}

// Experts of four layers of eight on devices whose links copy one in 1 us of virtual time.
class DeviceExpectTest : public testing::Test {
 protected:
  void Open(int devices, const DeviceExpertsOptions& options) {
    experts_.reset();
    home_.reset();
    EmulatedDeviceOptions link;
    link.capacity_bytes = 1 << 20;
    link.host_to_device = {4.096e9, 0};
    machine_ = std::make_unique<EmulatedMachine>(TestTime::kVirtual, devices, link);
    std::vector<Device*> places;
    places.reserve(static_cast<size_t>(devices));
    for (int d = 0; d < devices; ++d) places.push_back(&machine_->device(d));
    placement_ = std::make_unique<ExpertPlacement>(
        grid_, std::vector<int>(static_cast<size_t>(devices), -1));
    home_ =
        std::make_unique<HostExperts>(source_, grid_, *placement_, places, ExpertLoaderOptions{});
    experts_ = std::make_unique<DeviceExperts>(*home_, grid_, *placement_, places, options);
  }
  DeviceExpectTest() {
    const std::vector<std::byte>& bytes = source_.Contents()[0];
    std::ofstream(directory_.path() / "experts", std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  std::vector<ExpertId> Layer(int layer) const {
    return source_.Ids(layer, {0, 1, 2, 3, 4, 5, 6, 7});
  }
  void Pass(int64_t us) { machine_->system().AdvanceUs(us); }

  const TempDir directory_;
  const TestSource source_{Direct(), {directory_.path() / "experts"}};
  const ExpertGrid grid_{4, 8};
  std::unique_ptr<EmulatedMachine> machine_;
  std::unique_ptr<ExpertPlacement> placement_;
  std::unique_ptr<HostExperts> home_;
  std::unique_ptr<DeviceExperts> experts_;
};

// A long prompt: the whole next layer is copied while one computes.
TEST_F(DeviceExpectTest, TheNextLayerIsCopiedUnderThisOne) {
  for (const int devices : {1, 2}) {
    DeviceExpertsOptions options;
    options.miss = MissMode::kFetch;
    options.slots.assign(static_cast<size_t>(devices), 16 / devices);  // two layers
    Open(devices, options);
    for (int layer = 0; layer < 4; ++layer) {
      experts_->BeginLayer(Layer(layer), 8 * 16);
      if (layer < 3) experts_->Expect(Layer(layer + 1));
      std::vector<PinnedExpert> ready;
      while (experts_->TryNextReady(ready)) {
        if (ready.size() < 8) Pass(1);
      }
      ASSERT_EQ(ready.size(), 8u);
      // The layer computes, and nobody asks for anything, until the next one is there.
      const auto there = [&] {
        const std::vector<ExpertId> next = Layer(layer + 1);
        return std::all_of(next.begin(), next.end(),
                           [&](ExpertId id) { return experts_->IsResident(id); });
      };
      while (layer < 3 && !there()) Pass(1);
      for (const PinnedExpert& pinned : ready) experts_->Release(pinned);
      const ExpertStats stats = experts_->EndLayer();
      EXPECT_EQ(stats.hits, layer == 0 ? 0u : 8u);
      EXPECT_EQ(stats.misses, layer == 0 ? 8u : 0u);
    }
  }
}

TEST(DevicePacketBytesTest, PacketsOfSlowLinksAreSmall) {
  constexpr uint64_t kExpert = 192 * 1024;
  EXPECT_EQ(DevicePacketBytes(kExpert, 0), kExpert);  // not known
  EXPECT_EQ(DevicePacketBytes(kExpert, 99'000), kExpert);
  EXPECT_EQ(DevicePacketBytes(kExpert, 100'000), kExpert / 2);
  EXPECT_EQ(DevicePacketBytes(kExpert, 1'000'000), kExpert / 8);
  EXPECT_EQ(DevicePacketBytes(kExpert, int64_t{1} << 62), kExpert / 8);
  EXPECT_EQ(DevicePacketBytes(5000, 1'000'000), 4096u);  // whole pages
  EXPECT_EQ(DevicePacketBytes(uint64_t{64} << 20, 3'000'000'000), kDefaultPacketBytes);
  // Those of fast ones take 50 us, up to 2 MiB.
  EXPECT_EQ(DevicePacketBytes(uint64_t{64} << 20, 1), kFastPacketBytes);
  EXPECT_EQ(DevicePacketBytes(uint64_t{64} << 20, 3'200'000), uint32_t{1} << 20);
  EXPECT_EQ(DevicePacketBytes(uint64_t{64} << 20, 0), kDefaultPacketBytes);
  EXPECT_EQ(DevicePacketBytes(uint64_t{64} << 20, 0, true), kFastPacketBytes);
}

// Misses are planned by the rates that a profile knows, from the first layer on.
TEST_F(DeviceExpectTest, StartsWithTheRatesThatAreKnown) {
  struct Case {
    int64_t copy_ns;
    double host_ns;
    uint64_t on_host;
  };
  // One host and one link: the host takes as many as end no later than the link's rest.
  for (const Case& c : {Case{1'000'000, 1, 8}, Case{1, 1'000'000, 0}, Case{1000, 1000, 4},
                        Case{3000, 1000, 6}, Case{1000, 3000, 2}}) {
    DeviceExpertsOptions options;
    options.miss = MissMode::kAuto;
    options.slots = {8};
    options.copy_ns = {c.copy_ns};
    options.host_ns = {{16, c.host_ns}};
    Open(1, options);
    experts_->BeginLayer(Layer(0), 8 * 16);
    std::vector<PinnedExpert> ready;
    for (size_t used = 0; used < 8; used += ready.size()) {
      ready.clear();
      ASSERT_TRUE(experts_->TryNextReady(ready));
      for (const PinnedExpert& pinned : ready) experts_->Release(pinned);
      if (ready.empty()) Pass(1);
    }
    EXPECT_EQ(experts_->EndLayer().on_host, c.on_host) << c.copy_ns << " " << c.host_ns;
  }
}

}  // namespace
}  // namespace moesaic
