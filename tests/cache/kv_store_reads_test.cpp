// How a store of prefix blocks hands them over: from host memory, from the disk by several reads at
// a time, and with the recurrent states behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "cache/kv_store.h"
#include "core/base/error.h"
#include "tests/cache/kv_store_rig.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

using KvStoreReadTest = KvStoreTest;

// A read that is stopped has ended when Stop returns, and others go on.
TEST_F(KvStoreReadTest, ReadsStop) {
  const auto tokens = Tokens(1, kPoolBlocks);
  const auto store = Open();
  WriteAll(*store, tokens);
  std::vector<int32_t> blocks;
  for (int32_t b = 0; b < kPoolBlocks; ++b) blocks.insert(blocks.end(), {b, b});
  const std::vector<int32_t> first = {0, 0};
  for (int round = 0; round < 50; ++round) {
    const KvStore::ReadId stopped = store->Read(kEmptyPrefix, tokens, blocks, {});
    const KvStore::ReadId other = store->Read(kEmptyPrefix, BlockOf(tokens, 0), first, {});
    store->Stop(stopped);
    for (std::vector<std::byte>& layer : layers_) {  // but for the first block, the other one's
      std::fill(layer.begin() + std::ssize(layer) / kPoolBlocks, layer.end(), std::byte{1});
    }
    while (!store->Poll(other).ended) std::this_thread::yield();
    EXPECT_EQ(store->Poll(other).done, 1);
    store->Stop(other);
    for (const std::vector<std::byte>& layer : layers_) ASSERT_EQ(layer.back(), std::byte{1});
  }
  EXPECT_GT(progress_.load(), 0);
}

// Stop waits for no disk: what that gives later goes to the store's memory, and nowhere else.
TEST_F(KvStoreReadTest, StopDoesNotWaitForTheDisk) {
  const auto tokens = Tokens(1, 2);
  WriteAll(*Open(), tokens);
  DiskScript disk;
  KvStoreOptions options = Options();
  UseDisk(disk, options);
  const auto store = OpenWith(options);
  disk.hold = true;
  const std::vector<int32_t> blocks = {0, 0, 1, 1};
  const KvStore::ReadId read = store->Read(kEmptyPrefix, tokens, blocks, {});
  while (disk.in_flight.load() == 0) std::this_thread::yield();
  store->Stop(read);
  for (std::vector<std::byte>& layer : layers_) std::fill(layer.begin(), layer.end(), std::byte{1});
  disk.hold = false;
  while (store->counters().bytes_read < 2 * kBlockBytes) std::this_thread::yield();
  for (const std::vector<std::byte>& layer : layers_) {
    EXPECT_EQ(std::count(layer.begin(), layer.end(), std::byte{1}), std::ssize(layer));
  }
  EXPECT_EQ(ReadAll(*store, tokens), 2);
  EXPECT_EQ(disk.reads.load(), 1);
}

TEST_F(KvStoreReadTest, SeveralReadsAreInFlightAndNeighboursAreOne) {
  const auto a = Tokens(1, kPoolBlocks);
  const auto b = Tokens(2, kPoolBlocks);
  const auto together = Tokens(3, kPoolBlocks);
  {
    const auto store = Open();
    // Slot by slot in turn.
    for (size_t blocks = 1; blocks <= kPoolBlocks; ++blocks) {
      WriteAll(*store, {a.begin(), a.begin() + static_cast<std::ptrdiff_t>(blocks * kTokens)});
      WriteAll(*store, {b.begin(), b.begin() + static_cast<std::ptrdiff_t>(blocks * kTokens)});
    }
    WriteAll(*store, together);
  }
  std::vector<int32_t> blocks;
  for (int32_t i = 0; i < kPoolBlocks; ++i) blocks.insert(blocks.end(), {i, i});
  DiskScript disk;
  KvStoreOptions options = Options();
  UseDisk(disk, options);
  const auto store = OpenWith(options);
  const auto read_all = [&](const std::vector<int32_t>& tokens) {
    const KvStore::ReadId read = store->Read(kEmptyPrefix, tokens, blocks, {});
    while (!store->Poll(read).ended) std::this_thread::yield();
    EXPECT_EQ(store->Poll(read).done, kPoolBlocks);
    store->Stop(read);
    for (size_t i = 0; i < kPoolBlocks; ++i) {
      std::vector<std::byte> bytes(kBlockBytes);
      memory_.Gather(std::span(blocks).subspan(2 * i, 2), bytes);
      EXPECT_EQ(bytes, Content(BlockOf(tokens, i))) << i;
    }
  };
  read_all(together);
  EXPECT_EQ(disk.reads.load(), 1);
  EXPECT_EQ(disk.most_bytes.load(), kPoolBlocks * uint64_t{4096});
  disk.hold = true;
  std::thread release([&] {
    while (disk.in_flight.load() < kPoolBlocks) std::this_thread::yield();
    disk.hold = false;
  });
  read_all(a);
  release.join();
  EXPECT_EQ(disk.reads.load(), 1 + kPoolBlocks);
  EXPECT_EQ(disk.most_in_flight.load(), kPoolBlocks);
}

// What will be asked for is in memory by then, and counts as read.
TEST_F(KvStoreReadTest, WhatFollowsIsReadAhead) {
  const auto tokens = Tokens(1, kPoolBlocks);
  WriteAll(*Open(), tokens);
  const auto store = OpenByFrames();
  const std::vector<int32_t> first = {0, 0};
  const KvStore::ReadId read =
      store->Read(kEmptyPrefix, BlockOf(tokens, 0), first, std::span(tokens).subspan(kTokens));
  while (store->counters().bytes_read < kPoolBlocks * kBlockBytes) std::this_thread::yield();
  store->Stop(read);
  EXPECT_EQ(store->counters().memory_blocks, static_cast<uint64_t>(kPoolBlocks));
  EXPECT_EQ(ReadAll(*store, tokens), kPoolBlocks);
  EXPECT_EQ(store->counters().bytes_read, kPoolBlocks * kBlockBytes);
  EXPECT_EQ(store->counters().from_disk, static_cast<uint64_t>(kPoolBlocks));
}

// A system whose cache of files has the first so many blocks, and its disk.
struct CachingSystem {
  explicit CachingSystem(int blocks) : cached(blocks) {}

  KvBlockCopies::ReadCached ReadCached() {
    return [this](int file, uint64_t offset, std::span<const iovec> to) {
      ++asked;
      return offset < static_cast<uint64_t>(cached) * 4096 && ReadPieces(file, offset, to);
    };
  }
  KvStoreOptions Use(KvStoreOptions options) {
    UseDisk(disk, options);
    options.read_cached = ReadCached();
    return options;
  }

  const int cached;
  std::atomic<int> asked{0};
  DiskScript disk;
};

// What is cached goes past the frames, and the disk is asked for the others.
TEST_F(KvStoreReadTest, TheSystemsCacheIsAskedBeforeTheDisk) {
  const auto tokens = Tokens(1, kPoolBlocks);
  WriteAll(*Open(), tokens);
  std::vector<int32_t> blocks;
  for (int32_t b = 0; b < kPoolBlocks; ++b) blocks.insert(blocks.end(), {b, b});
  for (const int cached : {0, 3, kPoolBlocks}) {
    CachingSystem system(cached);
    const auto store = OpenWith(system.Use(Options()));
    const KvStore::ReadId read = store->Read(kEmptyPrefix, tokens, blocks, {});
    while (!store->Poll(read).ended) std::this_thread::yield();
    EXPECT_EQ(store->Poll(read).done, kPoolBlocks);
    EXPECT_EQ(store->Poll(read).from_memory, 0);
    store->Stop(read);
    for (size_t i = 0; i < kPoolBlocks; ++i) {
      std::vector<std::byte> bytes(kBlockBytes);
      memory_.Gather(std::span(blocks).subspan(2 * i, 2), bytes);
      EXPECT_EQ(bytes, Content(BlockOf(tokens, i))) << i;
    }
    EXPECT_EQ(system.disk.reads.load(), cached < kPoolBlocks ? 1 : 0);
    EXPECT_EQ(store->counters().memory_blocks, static_cast<uint64_t>(kPoolBlocks - cached));
    EXPECT_EQ(store->counters().bytes_read, kPoolBlocks * kBlockBytes);
    EXPECT_EQ(store->counters().from_disk, static_cast<uint64_t>(kPoolBlocks));
    EXPECT_GT(system.asked.load(), 0);
  }
}

TEST_F(KvStoreReadTest, WhatIsCachedIsNotReadAhead) {
  const auto tokens = Tokens(1, kPoolBlocks);
  WriteAll(*Open(), tokens);
  CachingSystem system(kPoolBlocks);
  const auto store = OpenWith(system.Use(Options()));
  const std::vector<int32_t> first = {0, 0};
  const KvStore::ReadId read =
      store->Read(kEmptyPrefix, BlockOf(tokens, 0), first, std::span(tokens).subspan(kTokens));
  while (!store->Poll(read).ended) std::this_thread::yield();
  EXPECT_EQ(store->Poll(read).done, 1);
  store->Stop(read);
  EXPECT_EQ(WriteAll(*store, Tokens(2, 1)), 1);  // reading ahead would come before
  while (store->counters().blocks_written < 1) std::this_thread::yield();
  EXPECT_EQ(system.disk.reads.load(), 0);
  EXPECT_EQ(ReadAll(*store, tokens), kPoolBlocks);
}

// The pool's memory is its caller's again when Stop has returned.
TEST_F(KvStoreReadTest, StopWaitsForACopyThatRuns) {
  const auto tokens = Tokens(1, 1);
  WriteAll(*Open(), tokens);
  std::atomic<bool> begun{false};
  std::atomic<bool> may_end{false};
  std::atomic<bool> ended{false};
  KvStoreOptions options = Options();
  options.read_cached = [&](int file, uint64_t offset, std::span<const iovec> to) {
    begun = true;
    while (!may_end) std::this_thread::yield();
    const bool there = ReadPieces(file, offset, to);
    ended = true;
    return there;
  };
  const auto store = OpenWith(options);
  const std::vector<int32_t> first = {0, 0};
  const KvStore::ReadId read = store->Read(kEmptyPrefix, tokens, first, {});
  while (!begun) std::this_thread::yield();
  std::thread release([&] {  // later than a Stop that does not wait would have returned
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    may_end = true;
  });
  store->Stop(read);
  EXPECT_TRUE(ended);
  release.join();
}

// A damaged block is found in the system's cache as on the disk, and told of once.
TEST_F(KvStoreReadTest, DamageInTheSystemsCacheIsFound) {
  const auto tokens = Tokens(1, kPoolBlocks);
  WriteAll(*Open(), tokens);
  Damage(".blocks", 5 * 4096 + 10);
  CachingSystem system(kPoolBlocks);
  const auto store = OpenWith(system.Use(Options()));
  EXPECT_EQ(ReadAll(*store, tokens), 5);
  EXPECT_EQ(store->counters().failed_reads, 1u);
  EXPECT_EQ(store->Find(tokens).size(), 5u);
}

// Memory that was asked for has what was used last, wherever that came from.
TEST_F(KvStoreReadTest, MemoryBeforeADiskKeepsWhatTheSystemHadCached) {
  const auto tokens = Tokens(1, kPoolBlocks);
  WriteAll(*Open(), tokens);
  CachingSystem system(kPoolBlocks);
  KvStoreOptions options = system.Use(Options());
  options.memory_bytes = kPoolBlocks * 4096;
  const auto store = OpenWith(options);
  EXPECT_EQ(ReadAll(*store, tokens), kPoolBlocks);
  EXPECT_EQ(system.asked.load(), 0);
  EXPECT_EQ(store->counters().memory_blocks, static_cast<uint64_t>(kPoolBlocks));
}

TEST_F(KvStoreReadTest, AStoreInMemoryAloneKeepsWhatWasUsedLast) {
  KvStoreOptions options = Options();
  options.directory.clear();
  options.memory_bytes = 8 * 4096 + 100;
  const auto store = OpenWith(options);
  EXPECT_EQ(store->slots(), 8);
  const auto a = Tokens(1, 4);
  const auto b = Tokens(2, 4);
  EXPECT_EQ(WriteAll(*store, a), 4);
  EXPECT_EQ(WriteAll(*store, b), 4);
  EXPECT_EQ(store->Find(a).size(), 4u);
  EXPECT_EQ(WriteAll(*store, Tokens(3, 3)), 3);
  EXPECT_EQ(store->counters().evicted, 3u);
  EXPECT_EQ(store->counters().memory_bytes, 8u * 4096);
  EXPECT_EQ(ReadAll(*store, a), 4);
  EXPECT_EQ(ReadAll(*store, b), 0);
  EXPECT_EQ(store->counters().from_memory, 4u);
  EXPECT_EQ(store->counters().bytes_read + store->counters().bytes_written, 0u);
  EXPECT_FALSE(fs::exists(place_.path() / "store"));
  options.memory_bytes = 4000;
  EXPECT_TRUE(Contains(Caught([&] { OpenWith(options); }), "--kv-store-memory"));
}

// More memory keeps more of what the disk has; what leaves it is read again.
TEST_F(KvStoreReadTest, MemoryBeforeADiskKeepsWhatWasUsedLast) {
  constexpr int64_t kBlocks = 1100;  // more than are on their way at a time
  const auto tokens = Tokens(1, kBlocks);
  for (const uint64_t kept : {uint64_t{0}, uint64_t{200}}) {
    fs::remove_all(place_.path() / "store");
    KvStoreOptions options = Options(kBlocks);
    options.memory_bytes = kept * 4096;
    const auto store = OpenWith(options);
    EXPECT_EQ(store->frames(), 1025 + static_cast<int64_t>(kept));
    EXPECT_EQ(WriteAll(*store, tokens), kBlocks);
    while (store->counters().blocks_written < kBlocks) std::this_thread::yield();
    EXPECT_EQ(store->counters().left_memory, kept == 0 ? 75u : 0u);
    EXPECT_EQ(store->counters().memory_blocks, std::min<uint64_t>(kBlocks, 1025 + kept));
    EXPECT_EQ(ReadAll(*store, {tokens.begin(), tokens.begin() + 80 * kTokens}), 80);
    EXPECT_GE(store->counters().from_memory, kept == 0 ? 0u : 80u);
    EXPECT_EQ(store->counters().from_memory + store->counters().from_disk, 80u);
    EXPECT_GE(store->counters().from_disk, kept == 0 ? 75u : 0u);
  }
}

class KvStoreStateTest : public KvStoreTest {
 protected:
  static constexpr uint64_t kStateBytes = 2 * kBlockBytes + 100;

  void SetUp() override {
    KvStoreTest::SetUp();
    memory_.states = states_.data();
    memory_.state_bytes = kStateBytes;
    ASSERT_EQ(memory_.state_parts(), 3);
  }
  std::span<std::byte> State(size_t slot) {
    return std::span(states_).subspan(slot * kStateBytes, kStateBytes);
  }
  void Fill(size_t slot, uint32_t seed) {
    std::mt19937 random(seed);
    for (std::byte& byte : State(slot)) byte = static_cast<std::byte>(random());
  }
  // As many parts as are taken.
  int64_t WriteState(KvStore& store, PrefixId prefix, int32_t slot) {
    PrefixId parent = prefix;
    for (int64_t part = 0; part < store.state_parts(); ++part) {
      if (!store.WaitToTake(KvStore::Clock::now() + std::chrono::seconds(60))) return part;
      parent = store.WriteStatePart(parent, part, slot);
      if (parent == kEmptyPrefix) return part;
    }
    return store.state_parts();
  }
  int64_t ReadState(KvStore& store, PrefixId prefix, int32_t slot) {
    const KvStore::ReadId read = store.ReadState(prefix, slot);
    while (!store.Poll(read).ended) std::this_thread::yield();
    const int64_t done = store.Poll(read).done;
    store.Stop(read);
    return done;
  }

  std::vector<std::byte> states_ = std::vector<std::byte>(3 * kStateBytes);
};

TEST_F(KvStoreStateTest, StatesOutliveTheStoreBehindTheirPrefixes) {
  const auto tokens = Tokens(1, 4);
  Fill(0, 1);
  Fill(1, 2);
  {
    const auto store = Open();
    WriteAll(*store, tokens);
    const std::vector<PrefixId> ids = store->Find(tokens);
    EXPECT_FALSE(store->FindState(ids[1]));
    EXPECT_EQ(WriteState(*store, ids[1], 0), 3);
    EXPECT_EQ(WriteState(*store, ids[3], 1), 3);
    EXPECT_TRUE(store->FindState(ids[1]));
    EXPECT_EQ(store->counters().blocks, 10u);
  }
  {
    const auto store = Open();
    const std::vector<PrefixId> ids = store->Find(tokens);
    ASSERT_EQ(ids.size(), 4u);
    EXPECT_FALSE(store->FindState(ids[0]));
    EXPECT_TRUE(store->FindState(ids[1]));
    EXPECT_FALSE(store->FindState(ids[2]));
    ASSERT_TRUE(store->FindState(ids[3]));
    EXPECT_EQ(ReadState(*store, ids[3], 2), 3);
    EXPECT_TRUE(std::ranges::equal(State(2), State(1)));
    EXPECT_EQ(ReadState(*store, ids[1], 2), 3);
    EXPECT_TRUE(std::ranges::equal(State(2), State(0)));
    EXPECT_EQ(ReadAll(*store, tokens), 4);  // a state is no block of a prompt's
  }
  // One of whose parts is damaged is none, and the other ones are whole.
  Damage(".blocks", 5 * 4096 + 10);
  const auto store = Open();
  const std::vector<PrefixId> ids = store->Find(tokens);
  EXPECT_EQ(ReadState(*store, ids[1], 2), 1);
  EXPECT_FALSE(store->FindState(ids[1]));
  EXPECT_EQ(ReadState(*store, ids[3], 2), 3);
  EXPECT_EQ(ReadAll(*store, tokens), 4);
}

// Nothing of another state shows behind the last part.
TEST_F(KvStoreStateTest, WhatALastPartLeavesIsZeros) {
  std::vector<std::byte> packed(kBlockBytes, std::byte{9});
  Fill(1, 3);
  memory_.GatherState(1, 2, packed);
  EXPECT_TRUE(std::equal(packed.begin(), packed.begin() + 100, State(1).begin() + 2 * kBlockBytes));
  EXPECT_EQ(std::count(packed.begin() + 100, packed.end(), std::byte{}), std::ssize(packed) - 100);
}

}  // namespace
}  // namespace moesaic
