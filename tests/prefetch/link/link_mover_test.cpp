// What every link owes, whichever flow drives it and whoever packs: whole blobs, each handed out
// once; faults that end a layer and nothing else; no read left behind.

#include "prefetch/link/link_mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "prefetch/link/expert_flow.h"
#include "prefetch/link/stream_flow.h"
#include "tests/prefetch/fake_reader.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

enum class FlowKind { kExpert, kStream };

// Counts what it is told, and checks that it makes sense.
struct CountingObserver final : public LinkObserver {
  void OnBeginLayer(int, int64_t) override { ++layers; }
  void OnHandOut(int64_t experts, int64_t) override { handed_out += experts; }
  void OnWaited(WaitCause, int64_t begin_ns, int64_t there_ns, int64_t end_ns) override {
    ++waits;
    in_order &= begin_ns <= there_ns && there_ns <= end_ns;
  }
  void OnEndLayer(int64_t) override { --layers; }
  void OnChange(bool, int64_t, int64_t) override {}
  void OnPacket(uint64_t bytes) override { packet_bytes += bytes; }
  void OnLink(LinkState state, int64_t, int64_t) override { last = state; }
  void OnRead(ExpertId, int64_t begin_ns, int64_t end_ns) override {
    ++reads;
    in_order &= begin_ns <= end_ns;
  }
  void OnPacked(ExpertId, int64_t begin_ns, int64_t end_ns) override {
    ++packs;
    in_order &= begin_ns <= end_ns;
  }

  int64_t layers = 0;  // open ones
  int64_t handed_out = 0;
  int64_t waits = 0;
  int64_t reads = 0;
  int64_t packs = 0;
  uint64_t packet_bytes = 0;
  LinkState last = LinkState::kIdle;
  bool in_order = true;
};

class LinkMoverTest : public testing::TestWithParam<std::tuple<FlowKind, bool, int>> {
 protected:
  static TestSourceShape Shape() {
    TestSourceShape shape;
    shape.direct = std::get<1>(GetParam());
    if (shape.direct) shape.piece_bytes = {12288};
    return shape;
  }

  LinkMoverTest() : source(Shape()), disk(source.Contents()) {
    options.packet_bytes = 4096;
    options.depth = 4;
    options.pack_threads = std::get<2>(GetParam());
  }
  ~LinkMoverTest() override { disk.SetAutomatic(true); }

  void Make(int64_t slots) {
    const ExpertGrid grid(source.shape().num_layers, source.shape().num_experts);
    const auto make_flow = [&](LinkParameters link) -> std::unique_ptr<Flow> {
      if (std::get<0>(GetParam()) == FlowKind::kExpert) {
        return std::make_unique<ExpertFlow>(grid, std::move(link), nullptr, ExpertFlowOptions{});
      }
      // Every slot is a buffer: what is computed is read again, as an evicted expert is.
      return std::make_unique<StreamFlow>(grid, SparseLayers(source, grid.num_layers()), slots,
                                          slots, 4, std::move(link));
    };
    auto counting = std::make_unique<CountingObserver>();
    observer = counting.get();
    mover = std::make_unique<LinkMover>(source, grid, slots, options,
                                        std::make_unique<ManualReader>(disk, options.depth, true),
                                        make_flow, std::move(counting));
  }

  ExpertStats RunLayer(const std::vector<ExpertId>& needed) {
    mover->BeginLayer(needed, 1);
    Finish(needed);
    return mover->EndLayer();
  }
  void Finish(const std::vector<ExpertId>& needed) {
    std::set<ExpertId> seen;
    std::vector<PinnedExpert> ready;
    while (mover->NextReady(ready)) {
      for (const PinnedExpert& pinned : ready) {
        EXPECT_TRUE(source.IsBlobOf(pinned.id, pinned.blob));
        EXPECT_TRUE(seen.insert(pinned.id).second) << "handed out twice";
        mover->Release(pinned);
      }
      ready.clear();
    }
    EXPECT_EQ(seen, std::set<ExpertId>(needed.begin(), needed.end()));
  }
  // Of a layer that must fail; the experts that were handed out before are whole.
  std::unique_ptr<ExpertError> FailLayer(const std::vector<ExpertId>& needed) {
    std::unique_ptr<ExpertError> failure;
    mover->BeginLayer(needed, 1);
    try {
      std::vector<PinnedExpert> ready;
      while (mover->NextReady(ready)) {
        for (const PinnedExpert& pinned : ready) mover->Release(pinned);
        ready.clear();
      }
      ADD_FAILURE() << "the layer had its experts";
    } catch (const ExpertError& error) {
      failure = std::make_unique<ExpertError>(error);
    }
    mover->EndLayer();
    return failure;
  }

  std::vector<ExpertId> All(int layer) const { return source.Ids(layer, {0, 1, 2, 3, 4, 5, 6, 7}); }
  // The reads that bring this expert.
  bool IsOf(const ReadRequest& read, ExpertId id) const {
    for (const Extent& extent : source.Extents(id)) {
      if (read.file == extent.file && read.offset < extent.offset + extent.bytes &&
          extent.offset < read.offset + read.bytes) {
        return true;
      }
    }
    return false;
  }

  TestSource source;
  ManualDisk disk;
  LinkOptions options;
  CountingObserver* observer = nullptr;  // of the mover
  std::unique_ptr<LinkMover> mover;
};

TEST_P(LinkMoverTest, BlobsAreWholeInAnyNumberOfSlots) {
  std::mt19937 random(20);
  for (const int64_t slots : {1, 2, 5, 31, 32}) {
    SCOPED_TRACE(slots);
    Make(slots);
    for (int step = 0; step < 40; ++step) {
      if (step % 8 == 0) mover->StepBegan();
      std::vector<ExpertId> needed = All(step % source.shape().num_layers);
      std::shuffle(needed.begin(), needed.end(), random);
      needed.resize(1 + random() % needed.size());
      RunLayer(needed);
      EXPECT_LE(mover->resident(), slots);
    }
    mover->StopPrefetching();
    EXPECT_GT(mover->totals().bytes_read, 0u);
    EXPECT_EQ(mover->totals().failed_reads, 0u);
    mover.reset();
  }
}

TEST_P(LinkMoverTest, TheObserverIsToldOfEverything) {
  Make(3);
  for (int layer = 0; layer < 4; ++layer) RunLayer(All(layer));
  EXPECT_EQ(observer->layers, 0);
  EXPECT_EQ(observer->handed_out, 32);
  EXPECT_EQ(observer->reads, 32);
  EXPECT_EQ(observer->packs, source.direct() ? 0 : 32);
  EXPECT_GE(observer->packet_bytes, 32 * source.expert_bytes());
  // Reads of memory may all end before anybody asks for them, but not for ever.
  for (int i = 0; observer->waits == 0 && i < 10000; ++i) RunLayer(All(i % 4));
  EXPECT_GT(observer->waits, 0);
  EXPECT_TRUE(observer->in_order);
}

TEST_P(LinkMoverTest, AWaitEndsWhenOneIsThere) {
  Make(4);
  disk.SetAutomatic(false);
  mover->BeginLayer(source.Ids(0, {0, 1}), 1);
  disk.WaitForPending(4);
  std::vector<PinnedExpert> ready;
  EXPECT_TRUE(mover->TryNextReady(ready));  // there is more to come
  EXPECT_TRUE(ready.empty());
  std::thread finish([&] { disk.SetAutomatic(true); });
  EXPECT_TRUE(mover->NextReady(ready));
  EXPECT_FALSE(ready.empty());
  finish.join();
  for (const PinnedExpert& pinned : ready) {
    EXPECT_TRUE(source.IsBlobOf(pinned.id, pinned.blob));
    mover->Release(pinned);
  }
  ready.clear();
  while (mover->NextReady(ready)) {
  }
  EXPECT_FALSE(mover->TryNextReady(ready));
  mover->EndLayer();
}

TEST_P(LinkMoverTest, AShortReadIsCorruptAndNotTriedAgain) {
  Make(4);
  int short_reads = 0;
  disk.SetFault([&](const ReadRequest& read) -> int64_t {
    if (!IsOf(read, source.Id(2, 3))) return 0;
    ++short_reads;
    return 100;
  });
  const auto error = FailLayer(source.Ids(2, {3}));
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->kind(), ErrorKind::kCorrupt);
  EXPECT_EQ(error->expert(), source.Id(2, 3));
  EXPECT_NE(std::string(error->what()).find("cut short"), std::string::npos) << error->what();
  RunLayer(All(1));
  disk.SetFault(nullptr);
  RunLayer(All(2));
  // Each of its packets once: those that were in flight together.
  EXPECT_LE(short_reads, 4);
  EXPECT_EQ(mover->totals().given_up, 1u);
}

TEST_P(LinkMoverTest, AnErrorIsTriedAgain) {
  Make(4);
  int failures = 0;
  disk.SetFault([&](const ReadRequest&) -> int64_t { return failures++ < 2 ? -EIO : 0; });
  EXPECT_EQ(RunLayer(All(0)).failed_reads, 2u);
  EXPECT_EQ(mover->totals().given_up, 0u);
}

TEST_P(LinkMoverTest, AnErrorForEverEndsTheLayerAndNoOther) {
  options.max_retries = 3;
  Make(4);
  const ExpertId bad = source.Id(2, 3);
  const Extent last = source.Extents(bad).back();
  int tries = 0;
  disk.SetFault([&](const ReadRequest& read) -> int64_t {
    const uint64_t end = last.offset + last.bytes - 1;
    if (read.file != last.file || end < read.offset || end >= read.offset + read.bytes) return 0;
    ++tries;
    return -EIO;
  });
  const auto error = FailLayer({bad});
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->kind(), ErrorKind::kIo);
  EXPECT_EQ(error->expert(), bad);
  EXPECT_EQ(tries, 1 + options.max_retries);
  RunLayer(All(1));
  RunLayer(All(3));
  EXPECT_NE(FailLayer({bad}), nullptr);
  disk.SetFault(nullptr);
  RunLayer(All(2));
  EXPECT_EQ(mover->totals().given_up, 2u);
}

TEST_P(LinkMoverTest, WhatCannotBeReadIsHandedOutWhereThatIsAsked) {
  options.hands_out_failed = true;
  options.max_retries = 0;
  Make(8);
  const std::set<ExpertId> bad = {source.Id(2, 1), source.Id(2, 6)};
  disk.SetFault([&](const ReadRequest& read) -> int64_t {
    // Neighbours may share a page with them, and fail as well.
    return IsOf(read, source.Id(2, 1)) || IsOf(read, source.Id(2, 6)) ? -EIO : 0;
  });
  mover->BeginLayer(All(2), 1);
  std::set<ExpertId> seen;
  std::vector<PinnedExpert> ready;
  std::vector<ExpertId> failed;
  while (mover->NextReady(ready)) {
    for (const PinnedExpert& pinned : ready) {
      EXPECT_TRUE(source.IsBlobOf(pinned.id, pinned.blob));
      EXPECT_TRUE(seen.insert(pinned.id).second);
      mover->Release(pinned);
    }
    ready.clear();
    mover->TakeFailed(failed);
  }
  mover->EndLayer();
  for (const ExpertId id : bad) EXPECT_EQ(seen.count(id), 0u);
  for (const ExpertId id : failed) EXPECT_TRUE(seen.insert(id).second);
  EXPECT_GE(failed.size(), 2u);
  EXPECT_EQ(seen.size(), 8u);
}

TEST_P(LinkMoverTest, ADamagedExpertEndsItsLayerOnly) {
  Make(4);
  const ExpertId bad = source.Id(2, 3);
  std::atomic<bool> damaged = true;
  const auto look = [&](ExpertId id) {
    if (damaged && id == bad) Fail(ErrorKind::kCorrupt, "damaged");
  };
  source.on_pack = look;
  source.must_check = [](ExpertId) { return true; };
  source.on_check = [&](ExpertId id, std::span<const std::byte> slot) {
    EXPECT_TRUE(source.IsBlobOf(id, slot.data()));
    look(id);
  };
  const auto error = FailLayer(All(2));
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->kind(), ErrorKind::kCorrupt);
  EXPECT_EQ(error->expert(), bad);
  RunLayer(source.Ids(2, {0, 1, 2, 4}));
  RunLayer(All(3));
  damaged = false;
  RunLayer(All(2));
}

TEST_P(LinkMoverTest, ALayerThatEndsEarlyLeavesNothingWrong) {
  Make(4);
  disk.SetAutomatic(false);
  mover->BeginLayer(All(0), 1);
  disk.WaitForPending(4);
  disk.Complete(1);
  mover->EndLayer();  // reads are in flight, into slots that others want now
  mover->BeginLayer(source.Ids(0, {1, 6}), 1);
  mover->EndLayer();
  mover->BeginLayer(All(1), 1);
  disk.SetAutomatic(true);
  Finish(All(1));
  mover->EndLayer();
  RunLayer(All(0));
  EXPECT_LE(mover->resident(), 4);
  EXPECT_EQ(observer->layers, 0);
}

TEST_P(LinkMoverTest, PinsThatAreHeldEndWithTheLayer) {
  Make(2);
  for (int layer = 0; layer < 4; ++layer) {
    mover->BeginLayer(All(layer), 1);
    std::vector<PinnedExpert> held;
    EXPECT_TRUE(mover->NextReady(held));
    mover->EndLayer();
  }
  RunLayer(All(0));
}

TEST_P(LinkMoverTest, EndsWithReadsInFlight) {
  Make(8);
  disk.SetAutomatic(false);
  mover->StepBegan();
  mover->BeginLayer(All(0), 1);
  disk.WaitForPending(4);
  std::thread finish([&] { disk.SetAutomatic(true); });
  mover.reset();  // ManualReader checks that nothing is left in flight
  finish.join();
}

TEST_P(LinkMoverTest, SlotsMayBeTheCallers) {
  AlignedBuffer memory(3 * source.layout().slot_bytes);
  options.slot_memory = memory.span();
  Make(3);
  const ExpertGrid grid(source.shape().num_layers, source.shape().num_experts);
  EXPECT_EQ(mover->slot_memory_bytes(), LinkMover::StagingBytes(source, grid, 3, options));
  mover->BeginLayer(All(0), 1);
  std::vector<PinnedExpert> ready;
  while (mover->NextReady(ready)) {
    for (const PinnedExpert& pinned : ready) {
      EXPECT_GE(pinned.blob, memory.data());
      EXPECT_LT(pinned.blob, memory.data() + memory.bytes());
      mover->Release(pinned);
    }
    ready.clear();
  }
  mover->EndLayer();
  mover.reset();  // before the slots
}

std::string NameOf(const testing::TestParamInfo<std::tuple<FlowKind, bool, int>>& info) {
  const auto& [flow, direct, pack_threads] = info.param;
  return std::string(flow == FlowKind::kExpert ? "ExpertFlow" : "StreamFlow") +
         (direct ? "Direct" : "Packed") + std::to_string(pack_threads) + "Threads";
}

INSTANTIATE_TEST_SUITE_P(EveryFlow, LinkMoverTest,
                         testing::Combine(testing::Values(FlowKind::kExpert, FlowKind::kStream),
                                          testing::Bool(), testing::Values(0, 2)),
                         NameOf);

}  // namespace
}  // namespace moesaic
