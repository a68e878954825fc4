// Experts in memory that another loader fills: what is there is handed out in place, the rest comes
// over a link of its own, and neither side stops the other.
#include "prefetch/link/shared_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "tests/prefetch/fake_reader.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

// A loader that fills `slots` shared slots, and members that read them.
class Pool {
 public:
  explicit Pool(int64_t slots, int64_t reserved)
      : source(TestSourceShape{}),
        slot_bytes_(source.layout().slot_bytes),
        memory_(static_cast<size_t>(slots) * slot_bytes_),
        table_memory_(SharedSlots::Bytes(grid)) {
    table_memory_.Zero();
    table.emplace(grid, table_memory_.span(), slots, reserved, slot_bytes_);
    ExpertLoaderOptions options = Options();
    options.slot_memory = memory_.span();
    options.readers = &*table;
    filler = MakeLoader(options);
  }

  std::unique_ptr<SharedExperts> Member(int number, int64_t own_slots) {
    ExpertLoaderOptions options = Options();
    options.budget_bytes = static_cast<uint64_t>(own_slots) * slot_bytes_;
    return std::make_unique<SharedExperts>(
        grid, SharedSlotsView(grid, table_memory_.span(), memory_.span(), slot_bytes_, number),
        MakeLoader(options));
  }
  // By all of them.
  uint64_t reads() const {
    uint64_t sum = 0;
    for (const auto& disk : disks_) sum += disk->submitted();
    return sum;
  }
  bool InPool(const std::byte* blob) const {
    return memory_.data() <= blob && blob < memory_.data() + memory_.bytes();
  }

  // Runs a layer and checks every blob. Returns how many were in the pool. Counts wrong ones.
  int64_t RunLayer(ExpertProvider& experts, const std::vector<ExpertId>& needed,
                   ExpertStats* stats = nullptr) {
    int64_t in_pool = 0;
    experts.BeginLayer(needed, std::ssize(needed));
    std::set<ExpertId> seen;
    std::vector<PinnedExpert> ready;
    while (experts.NextReady(ready)) {
      for (const PinnedExpert& pinned : ready) {
        in_pool += InPool(pinned.blob) ? 1 : 0;
        if (!seen.insert(pinned.id).second || !source.IsBlobOf(pinned.id, pinned.blob)) ++wrong;
        experts.Release(pinned);
      }
      ready.clear();
    }
    if (seen.size() != needed.size()) ++wrong;
    const ExpertStats counted = experts.EndLayer();
    if (stats != nullptr) *stats = counted;
    return in_pool;
  }

  const TestSource source;
  const ExpertGrid grid{4, 8};

 private:
  ExpertLoaderOptions Options() const {
    ExpertLoaderOptions options;
    options.packet_bytes = 4096;
    options.depth = 8;
    return options;
  }
  // Each has the disk to itself.
  std::unique_ptr<ExpertLoader> MakeLoader(const ExpertLoaderOptions& options) {
    disks_.push_back(std::make_unique<ManualDisk>(source.Contents()));
    disks_.back()->SetAutomatic(true);
    return std::make_unique<ExpertLoader>(source, grid.num_layers(), grid.num_experts(),
                                          MakeLruPolicy(grid.total()), options,
                                          std::make_unique<ManualReader>(*disks_.back(), 8, true));
  }

  std::vector<std::unique_ptr<ManualDisk>> disks_;
  const uint64_t slot_bytes_;
  AlignedBuffer memory_;
  AlignedBuffer table_memory_;

 public:
  std::optional<SharedSlots> table;
  std::unique_ptr<ExpertLoader> filler;  // goes before the memory
  std::atomic<int64_t> wrong{0};
};

TEST(SharedExpertsTest, WhatIsInThePoolIsUsedInPlace) {
  Pool pool(32, 0);
  pool.filler->Preload(pool.source.Ids(0, {0, 1, 2, 3, 4}));
  const auto member = pool.Member(0, 2);
  EXPECT_EQ(member->slots(), 34);
  EXPECT_EQ(member->resident(), 5);
  EXPECT_EQ(member->Preload(pool.source.AllIds(), nullptr), 0);
  const uint64_t before = pool.reads();
  ExpertStats stats;
  EXPECT_EQ(pool.RunLayer(*member, pool.source.Ids(0, {1, 3, 4}), &stats), 3);
  EXPECT_EQ(stats.hits, 3u);
  EXPECT_EQ(stats.misses, 0u);
  EXPECT_EQ(pool.reads(), before);
  EXPECT_EQ(pool.RunLayer(*member, pool.source.Ids(0, {0, 5, 6, 7}), &stats), 1);
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.misses, 3u);
  EXPECT_TRUE(member->IsResident(pool.source.Id(0, 2)));
  EXPECT_TRUE(member->IsResident(pool.source.Id(0, 7)));  // in a slot of its own
  EXPECT_FALSE(member->IsResident(pool.source.Id(1, 0)));
  EXPECT_EQ(member->Residents().size(), 7u);
  std::vector<ExpertPresence> places(static_cast<size_t>(pool.grid.total()));
  std::vector<LinkUse> links;
  EXPECT_TRUE(member->Look(places, links));
  EXPECT_EQ(std::count(places.begin(), places.end(), ExpertPresence::kResident), 7);
  EXPECT_EQ(links.size(), 1u);
  // What the filler reads from now on is there for all.
  pool.RunLayer(*pool.filler, pool.source.Ids(3, {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(pool.RunLayer(*member, pool.source.Ids(3, {0, 1, 2, 3, 4, 5, 6, 7})), 8);
  EXPECT_EQ(pool.wrong, 0);
}

// A layer that is given up, and one that ends with its experts pinned, leave no pin behind.
TEST(SharedExpertsTest, NoPinOutlivesItsLayer) {
  Pool pool(4, 1);
  pool.filler->Preload(pool.source.Ids(0, {0, 1, 2, 3}));
  const auto member = pool.Member(0, 1);
  std::vector<PinnedExpert> ready;
  member->BeginLayer(pool.source.Ids(0, {0, 1, 2, 3}), 4);
  ASSERT_TRUE(member->NextReady(ready));
  EXPECT_EQ(ready.size(), 3u);  // one is in the reserved slot
  int64_t stay = 0;
  for (ExpertIndex expert = 0; expert < 4; ++expert) stay += pool.table->MayLeave(expert) ? 0 : 1;
  EXPECT_EQ(stay, 3);
  pool.RunLayer(*pool.filler, pool.source.Ids(1, {0, 1, 2}));  // by the one slot that is left
  EXPECT_EQ(member->EndLayer().hits, 3u);
  for (ExpertIndex expert = 0; expert < 4; ++expert) EXPECT_TRUE(pool.table->MayLeave(expert));
  member->BeginLayer(pool.source.Ids(0, {1, 2, 3}), 3);
  member->EndLayer();
  for (ExpertIndex expert = 0; expert < 4; ++expert) EXPECT_TRUE(pool.table->MayLeave(expert));
  EXPECT_EQ(pool.wrong, 0);
}

// What is expected is read ahead only where it is not in the pool.
TEST(SharedExpertsTest, NothingIsReadTwice) {
  Pool pool(32, 0);
  pool.filler->Preload(pool.source.Ids(2, {0, 1, 2, 3}));
  const auto member = pool.Member(0, 4);
  const uint64_t before = pool.reads();
  member->Expect(pool.source.Ids(2, {0, 1, 2, 3}));
  EXPECT_EQ(pool.RunLayer(*member, pool.source.Ids(2, {0, 1, 2, 3})), 4);
  EXPECT_EQ(pool.reads(), before);
  member->Expect(pool.source.Ids(2, {3, 4}));
  EXPECT_EQ(pool.RunLayer(*member, pool.source.Ids(2, {3, 4})), 1);
  EXPECT_GT(pool.reads(), before);
  EXPECT_EQ(pool.wrong, 0);
}

// The filler evicts all the time while two members compute with what they find.
TEST(SharedExpertsTest, AllOfThemGoOnTogether) {
  for (const int64_t slots : {2, 6, 16}) {
    Pool pool(slots, std::max<int64_t>(1, slots / 4));
    constexpr int kLayers = 200;
    std::atomic<int64_t> in_place{0};
    const auto run = [&](ExpertProvider& experts, uint32_t seed, bool counts) {
      std::mt19937 random(seed);
      for (int i = 0; i < kLayers; ++i) {
        std::vector<int> chosen;
        for (int e = 0; e < 8; ++e) {
          if (random() % 2 == 0) chosen.push_back(e);
        }
        const int64_t found = pool.RunLayer(experts, pool.source.Ids(i % 4, chosen));
        if (counts) in_place += found;
      }
    };
    const auto first = pool.Member(0, 1);
    const auto second = pool.Member(1, 3);
    std::thread one([&] { run(*first, 1, true); });
    std::thread two([&] { run(*second, 2, true); });
    run(*pool.filler, 3, false);
    one.join();
    two.join();
    EXPECT_EQ(pool.wrong, 0) << slots;
    if (slots == 16) {
      EXPECT_GT(in_place, 0);
    }
  }
}

}  // namespace
}  // namespace moesaic
