// A store of prefix blocks on disk: what was written is found by its tokens and has the same bytes,
// in this process, in the next one and in one beside it; what is damaged, cut off or not written is
// as if it had never been there.
#include "cache/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokens = 4;  // of a block
constexpr int kPoolBlocks = 8;
constexpr uint64_t kBlockBytes = 3 * 640 + 2 * 192;
constexpr uint64_t kStoreSlotBytes = 4096 + 64;  // and an entry of the index

// Two groups of layers, whose memory a test fills and looks at.
class KvStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [bytes, group] : std::vector<std::pair<uint64_t, size_t>>{
             {640, 0}, {192, 1}, {640, 0}, {192, 1}, {640, 0}}) {
      layers_.emplace_back(bytes * kPoolBlocks);
      memory_.layers.push_back({layers_.back().data(), bytes, group});
    }
    ASSERT_EQ(memory_.block_bytes(), kBlockBytes);
  }

  std::unique_ptr<KvStore> Open(int64_t slots = 64, FileCalls& calls = FileCalls::System(),
                                const std::string& key = "model") {
    return std::make_unique<KvStore>(
        KvStoreOptions{
            .directory = place_.path() / "store",
            .limit_bytes = kKvStoreHeaderBytes + static_cast<uint64_t>(slots) * kStoreSlotBytes,
            .key = key,
            .block_tokens = kTokens,
            .memory = memory_,
            .groups = 2},
        [this] { progress_.fetch_add(1); }, calls);
  }

  static std::vector<int32_t> Tokens(int seed, int64_t blocks) {
    std::vector<int32_t> tokens(static_cast<size_t>(blocks * kTokens));
    std::iota(tokens.begin(), tokens.end(), seed * 1000);
    return tokens;
  }
  static std::span<const int32_t> BlockOf(const std::vector<int32_t>& tokens, size_t block) {
    return std::span(tokens).subspan(block * kTokens, kTokens);
  }

  // What the block behind this prefix holds: bytes that follow from its tokens.
  static std::vector<std::byte> Content(std::span<const int32_t> tokens) {
    std::mt19937 random(static_cast<uint32_t>(tokens.front() * 7 + tokens.back()));
    std::vector<std::byte> bytes(kBlockBytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }

  // Writes all blocks of the tokens; returns how many were taken.
  int64_t WriteAll(KvStore& store, const std::vector<int32_t>& tokens) {
    PrefixId parent = kEmptyPrefix;
    int64_t taken = 0;
    for (size_t b = 0; b * kTokens < tokens.size(); ++b) {
      if (const auto there = store.FindBlock(parent, BlockOf(tokens, b))) {
        parent = *there;
        continue;
      }
      if (!store.WaitToTake(KvStore::Clock::now() + std::chrono::seconds(60))) break;
      const std::vector<int32_t> blocks = {3, 5};
      memory_.Scatter(Content(BlockOf(tokens, b)), blocks);
      parent = store.Write(parent, BlockOf(tokens, b), blocks);
      if (parent == kEmptyPrefix) break;
      ++taken;
    }
    return taken;
  }

  // How many of the first blocks are read with the bytes that they had; -1: one had others.
  int64_t ReadAll(KvStore& store, const std::vector<int32_t>& tokens) {
    PrefixId parent = kEmptyPrefix;
    int64_t whole = 0;
    for (size_t b = 0; b * kTokens < tokens.size(); ++b) {
      const std::vector<int32_t> blocks = {static_cast<int32_t>(b % kPoolBlocks), 7};
      memory_.Scatter(std::vector<std::byte>(kBlockBytes), blocks);
      const KvStore::ReadId read = store.Read(parent, BlockOf(tokens, b), blocks,
                                              std::span(tokens).subspan((b + 1) * kTokens));
      while (!store.Poll(read).ended) std::this_thread::yield();
      const int64_t done = store.Poll(read).done;
      store.Stop(read);
      if (done == 0) break;
      std::vector<std::byte> bytes(kBlockBytes);
      memory_.Gather(blocks, bytes);
      if (bytes != Content(BlockOf(tokens, b))) return -1;
      ++whole;
      const auto id = store.FindBlock(parent, BlockOf(tokens, b));
      if (!id) break;
      parent = *id;
    }
    return whole;
  }

  fs::path FileOf(const char* extension) const {
    for (const auto& file : fs::directory_iterator(place_.path() / "store")) {
      if (file.path().extension() == extension) return file.path();
    }
    return {};
  }
  int64_t CountFiles(const char* extension) const {
    const fs::directory_iterator files(place_.path() / "store");
    return std::count_if(begin(files), end(files),
                         [&](const auto& file) { return file.path().extension() == extension; });
  }
  void Damage(const char* extension, uint64_t offset) {
    std::fstream file(FileOf(extension), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 1));
  }

  TempDir place_;
  std::vector<std::vector<std::byte>> layers_;
  KvMemory memory_;
  std::atomic<int> progress_{0};
};

// Calls of the system's, of which some fail.
class FailingCalls : public FileCalls {
 public:
  std::atomic<int> fail_writes{0};  // with this errno
  std::atomic<int> fail_reads{0};
  std::atomic<int64_t> writes_left{INT64_MAX};  // before the process is "killed"
  std::atomic<bool> hold_reads{false};          // as a slow disk does
  std::atomic<bool> holds{false};               // one of them

  ssize_t Write(int fd, const void* from, size_t bytes) override {
    if (const int error = fail_writes.load(); error != 0) {
      errno = error;
      return -1;
    }
    if (writes_left.fetch_sub(1) <= 0) {
      errno = EIO;
      return -1;
    }
    return FileCalls::Write(fd, from, bytes);
  }
  ssize_t Pread(int fd, void* to, size_t bytes, off_t offset) override {
    while (hold_reads.load()) {
      holds.store(true);
      std::this_thread::yield();
    }
    if (const int error = fail_reads.load(); error != 0) {
      errno = error;
      return -1;
    }
    return FileCalls::Pread(fd, to, bytes, offset);
  }
};

TEST_F(KvStoreTest, BlocksOutliveTheStore) {
  const auto a = Tokens(1, 9);
  auto b = Tokens(1, 9);  // the first four blocks are those of a
  b[4 * kTokens] = 77;
  {
    const auto store = Open();
    EXPECT_TRUE(store->Find(a).empty());
    EXPECT_EQ(WriteAll(*store, a), 9);
    EXPECT_EQ(WriteAll(*store, b), 5);
    EXPECT_EQ(ReadAll(*store, a), 9);
    EXPECT_EQ(store->Find(b).size(), 9u);
    EXPECT_EQ(store->counters().blocks, 14u);
    EXPECT_EQ(store->counters().bytes, 14u * 4096);
  }
  const auto store = Open();
  EXPECT_TRUE(store->writable());
  EXPECT_EQ(store->Find(a).size(), 9u);
  EXPECT_EQ(ReadAll(*store, a), 9);
  EXPECT_EQ(ReadAll(*store, b), 9);
  EXPECT_EQ(store->Find(std::span(b).first(6 * kTokens + 3)).size(), 6u);
  EXPECT_TRUE(store->Find(std::span(b).subspan(kTokens)).empty());  // found by all before it
  EXPECT_EQ(WriteAll(*store, b), 0);
  EXPECT_EQ(store->counters().bytes_read, 18 * kBlockBytes);
}

TEST_F(KvStoreTest, OtherKeysShareNothing) {
  const auto tokens = Tokens(1, 3);
  WriteAll(*Open(), tokens);
  EXPECT_TRUE(Open(64, FileCalls::System(), "model in another class")->Find(tokens).empty());
  EXPECT_EQ(ReadAll(*Open(), tokens), 3);
}

TEST_F(KvStoreTest, TheLeastRecentlyUsedLeaveAlsoBehindARestart) {
  const auto a = Tokens(1, 4);
  const auto b = Tokens(2, 4);
  const auto c = Tokens(3, 4);
  {
    const auto store = Open(8);
    WriteAll(*store, a);
    WriteAll(*store, b);
    EXPECT_EQ(store->Find(a).size(), 4u);  // used once more
  }
  {
    const auto store = Open(8);
    EXPECT_EQ(WriteAll(*store, std::vector<int32_t>(c.begin(), c.begin() + 3 * kTokens)), 3);
    EXPECT_EQ(store->counters().evicted, 3u);
    EXPECT_EQ(ReadAll(*store, a), 4);
    EXPECT_EQ(ReadAll(*store, c), 3);
    EXPECT_EQ(store->Find(b).size(), 0u);  // written in this order, and not used since
    store->Find(a);
    store->Find(c);
  }
  // Of a sequence that was used as a whole the end leaves first.
  const auto store = Open(8);
  EXPECT_EQ(WriteAll(*store, Tokens(4, 2)), 2);
  EXPECT_EQ(store->Find(a).size(), 3u);
  EXPECT_LE(fs::file_size(FileOf(".blocks")), 8u * 4096);
}

TEST_F(KvStoreTest, ASmallerLimitCutsTheStore) {
  const auto tokens = Tokens(1, 8);
  WriteAll(*Open(), tokens);
  {
    const auto store = Open(5);
    EXPECT_EQ(store->slots(), 5);
    EXPECT_EQ(ReadAll(*store, tokens), 5);
    EXPECT_EQ(fs::file_size(FileOf(".blocks")), 5u * 4096);
  }
  EXPECT_EQ(ReadAll(*Open(), tokens), 5);
}

TEST_F(KvStoreTest, DamageCostsTheBlockAndWhatFollowsIt) {
  const auto tokens = Tokens(1, 6);
  WriteAll(*Open(), tokens);
  Damage(".blocks", 3 * 4096 + 100);
  {
    const auto store = Open();
    EXPECT_EQ(ReadAll(*store, tokens), 3);
    EXPECT_EQ(store->counters().failed_reads, 1u);
    EXPECT_EQ(store->Find(tokens).size(), 3u);  // it is asked for once
    EXPECT_EQ(WriteAll(*store, tokens), 3);
  }
  EXPECT_EQ(ReadAll(*Open(), tokens), 6);
  // An entry of the index that is damaged: what follows it leads nowhere.
  Damage(".index", kKvStoreHeaderBytes + 2 * 64 + 40);
  {
    const auto store = Open();
    EXPECT_EQ(ReadAll(*store, tokens), 2);
    EXPECT_EQ(store->counters().blocks, 2u);
    WriteAll(*store, tokens);
  }
  EXPECT_EQ(ReadAll(*Open(), tokens), 6);
  // A header: all is written anew.
  Damage(".index", 20);
  const auto store = Open();
  EXPECT_TRUE(store->Find(tokens).empty());
  EXPECT_EQ(WriteAll(*store, tokens), 6);
  EXPECT_EQ(ReadAll(*store, tokens), 6);
}

TEST_F(KvStoreTest, FilesThatWereCutOffHaveWhatIsLeft) {
  const auto tokens = Tokens(1, 6);
  WriteAll(*Open(), tokens);
  fs::resize_file(FileOf(".blocks"), 4 * 4096 + 7);
  EXPECT_EQ(ReadAll(*Open(), tokens), 4);
  fs::resize_file(FileOf(".index"), kKvStoreHeaderBytes + 3 * 64 - 1);
  EXPECT_EQ(ReadAll(*Open(), tokens), 2);
  fs::resize_file(FileOf(".index"), 100);
  {
    const auto store = Open();
    EXPECT_TRUE(store->Find(tokens).empty());
    WriteAll(*store, tokens);
  }
  fs::remove(FileOf(".blocks"));
  EXPECT_TRUE(Open()->Find(tokens).empty());
}

// A process that ends at any call has left whole blocks, and old ones only where it had not begun
// with their slots.
TEST_F(KvStoreTest, KilledAtAnyWriteAStoreHasNoWrongBlock) {
  const auto a = Tokens(1, 4);
  const auto b = Tokens(2, 4);
  for (int64_t writes = 0; writes < 14; ++writes) {
    fs::remove_all(place_.path() / "store");
    WriteAll(*Open(4), a);
    {
      FailingCalls calls;
      const auto store = Open(4, calls);
      calls.writes_left = writes;
      WriteAll(*store, b);
    }
    const auto store = Open(4);
    const int64_t of_a = ReadAll(*store, a);
    const int64_t of_b = ReadAll(*store, b);
    EXPECT_GE(of_a, 0);
    EXPECT_EQ(of_b, writes / 3) << writes;  // an entry emptied, the block, its entry
    EXPECT_EQ(of_a, writes == 0 ? 4 : 0) << writes;
  }
}

TEST_F(KvStoreTest, AFullOrFailingDiskCostsBlocksOnly) {
  FailingCalls calls;
  const auto tokens = Tokens(1, 6);
  const auto store = Open(64, calls);
  EXPECT_EQ(WriteAll(*store, std::vector<int32_t>(tokens.begin(), tokens.begin() + 8)), 2);
  while (store->counters().blocks_written < 2) std::this_thread::yield();
  calls.fail_writes = ENOSPC;
  WriteAll(*store, tokens);
  while (store->counters().failed_writes == 0) std::this_thread::yield();
  EXPECT_TRUE(store->takes_none());
  EXPECT_FALSE(store->CanTake());
  EXPECT_EQ(store->Write(kEmptyPrefix, BlockOf(tokens, 0), std::vector<int32_t>{0, 0}),
            kEmptyPrefix);
  calls.fail_writes = 0;
  EXPECT_EQ(ReadAll(*store, tokens), 2);
  calls.fail_reads = EIO;
  EXPECT_EQ(ReadAll(*store, tokens), 0);
  EXPECT_EQ(store->counters().failed_reads, 1u);
}

TEST_F(KvStoreTest, ASecondProcessReadsWhatTheFirstOneWrites) {
  const auto a = Tokens(1, 3);
  const auto b = Tokens(2, 3);
  auto first = Open(4);
  WriteAll(*first, a);
  while (first->counters().blocks_written < 3) std::this_thread::yield();
  const auto second = Open(4);
  EXPECT_FALSE(second->writable());
  EXPECT_EQ(ReadAll(*second, a), 3);
  EXPECT_EQ(WriteAll(*second, b), 0);
  EXPECT_TRUE(second->takes_none());
  // What has been replaced meanwhile does not have its checksum.
  WriteAll(*first, b);
  while (first->counters().blocks_written < 6) std::this_thread::yield();
  EXPECT_GE(ReadAll(*second, a), 0);
  first.reset();
  const auto third = Open(4);
  EXPECT_TRUE(third->writable());
  EXPECT_EQ(ReadAll(*third, b), 3);
}

// A read that is stopped has ended when Stop returns, and others go on.
TEST_F(KvStoreTest, ReadsStop) {
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
    for (std::vector<std::byte>& layer : layers_)
      std::fill(layer.begin(), layer.end(), std::byte{1});
    while (!store->Poll(other).ended) std::this_thread::yield();
    EXPECT_EQ(store->Poll(other).done, 1);
    store->Stop(other);
    for (const std::vector<std::byte>& layer : layers_) ASSERT_EQ(layer.back(), std::byte{1});
  }
  EXPECT_GT(progress_.load(), 0);
}

// Stop returns when the disk has given the block that is being read, and not before: the caller
// gives the memory back that it goes to.
TEST_F(KvStoreTest, StopWaitsForTheBlockThatIsBeingRead) {
  FailingCalls calls;
  const auto tokens = Tokens(1, 2);
  const auto store = Open(64, calls);
  WriteAll(*store, tokens);
  while (store->counters().blocks_written < 2) std::this_thread::yield();
  calls.hold_reads.store(true);
  const KvStore::ReadId read =
      store->Read(kEmptyPrefix, tokens, std::vector<int32_t>{0, 0, 1, 1}, {});
  while (!calls.holds.load()) std::this_thread::yield();
  std::thread disk([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    calls.hold_reads.store(false);
  });
  store->Stop(read);
  EXPECT_FALSE(calls.hold_reads.load());
  disk.join();
}

TEST_F(KvStoreTest, WhatOtherModelsHaveLeftMakesRoom) {
  WriteAll(*Open(8, FileCalls::System(), "old"), Tokens(1, 6));
  {
    const auto store = Open(8, FileCalls::System(), "new");
    WriteAll(*store, Tokens(2, 2));
    store->Close();
    EXPECT_EQ(Open(8, FileCalls::System(), "old")->counters().blocks, 6u);
  }
  {
    const auto open = Open(8, FileCalls::System(), "old");  // in use: it stays
    WriteAll(*Open(8, FileCalls::System(), "new"), Tokens(2, 8));
    EXPECT_EQ(ReadAll(*open, Tokens(1, 6)), 6);
    EXPECT_EQ(CountFiles(".blocks"), 2);
  }
  WriteAll(*Open(8, FileCalls::System(), "third"), Tokens(3, 8));
  EXPECT_TRUE(Open(8, FileCalls::System(), "old")->Find(Tokens(1, 6)).empty());
}

TEST_F(KvStoreTest, OfOtherModelsTheOldestLeavesFirst) {
  WriteAll(*Open(8, FileCalls::System(), "older"), Tokens(1, 3));
  const fs::path older = FileOf(".blocks");
  WriteAll(*Open(8, FileCalls::System(), "newer"), Tokens(2, 3));
  fs::last_write_time(older, fs::last_write_time(older) - std::chrono::hours(1));
  WriteAll(*Open(8, FileCalls::System(), "third"), Tokens(3, 4));
  EXPECT_FALSE(fs::exists(older));
  EXPECT_EQ(CountFiles(".blocks"), 2);
}

TEST_F(KvStoreTest, OnlyAStoreOrAnEmptyDirectoryIsTaken) {
  const fs::path store = place_.path() / "store";
  CheckKvStorePlace(store);
  fs::create_directory(store);
  CheckKvStorePlace(store);
  std::ofstream(store / "precious") << "data";
  EXPECT_TRUE(Contains(Caught([&] { Open(); }), "not a store"));
  EXPECT_EQ(std::distance(fs::directory_iterator(store), fs::directory_iterator()), 1);
  fs::remove_all(store);
  std::ofstream(store) << "a file";
  EXPECT_TRUE(Contains(Caught([&] { Open(); }), "not a directory"));
  fs::remove(store);
  EXPECT_TRUE(Contains(Caught([&] { Open(0); }), "--kv-store-size"));
  WriteAll(*Open(), Tokens(1, 1));
  CheckKvStorePlace(store);
}

TEST(KvStoreFormatTest, AnyBitOfAnEntryOrAHeaderCounts) {
  const std::vector<int32_t> tokens = {1, -2, 3, 1 << 30, 5};
  const KvStoreEntry entry = {.id = 9, .parent = 4, .used = 77, .checksum = ~uint64_t{0}};
  std::vector<std::byte> bytes(KvStoreEntryBytes(5));
  PackKvStoreEntry(entry, tokens, bytes);
  KvStoreEntry found;
  std::vector<int32_t> found_tokens(5);
  ASSERT_EQ(ParseKvStoreEntry(bytes, found, found_tokens), KvEntryState::kGood);
  EXPECT_EQ(found.id, 9u);
  EXPECT_EQ(found.parent, 4u);
  EXPECT_EQ(found.used, 77u);
  EXPECT_EQ(found.checksum, ~uint64_t{0});
  EXPECT_EQ(found_tokens, tokens);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(ParseKvStoreEntry(bytes, found, found_tokens), KvEntryState::kDamaged) << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  std::vector<std::byte> header(kKvStoreHeaderBytes);
  PackKvStoreHeader({.key = "a key", .block_tokens = 16, .block_bytes = 12345}, header);
  const KvStoreShape shape = ParseKvStoreHeader(header, "x");
  EXPECT_EQ(shape.key, "a key");
  EXPECT_EQ(shape.block_tokens, 16);
  EXPECT_EQ(shape.block_bytes, 12345u);
  for (size_t bit = 0; bit < header.size() * 8; bit += bit < 1024 ? 1 : 61) {
    header[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(ParseKvStoreHeader(header, "x"), Error) << bit;
    header[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_THROW(ParseKvStoreHeader(std::span(header).first(100), "x"), Error);
}

}  // namespace
}  // namespace moesaic
