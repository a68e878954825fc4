// A store of prefix blocks on disk: what was written is found by its tokens and has the same bytes,
// in this process, in the next one and in one beside it; what is damaged, cut off or not written is
// as if it had never been there.
#include "cache/kv_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "tests/cache/kv_store_rig.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

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
  const auto store = OpenByFrames();
  EXPECT_TRUE(store->writable());
  EXPECT_EQ(store->Find(a).size(), 9u);
  EXPECT_EQ(ReadAll(*store, a), 9);
  EXPECT_EQ(ReadAll(*store, b), 9);
  EXPECT_EQ(store->Find(std::span(b).first(6 * kTokens + 3)).size(), 6u);
  EXPECT_TRUE(store->Find(std::span(b).subspan(kTokens)).empty());  // found by all before it
  EXPECT_EQ(WriteAll(*store, b), 0);
  // The first four of b were in memory by then.
  EXPECT_EQ(store->counters().bytes_read, 14 * kBlockBytes);
  EXPECT_EQ(store->counters().from_disk, 14u);
  EXPECT_EQ(store->counters().from_memory, 4u);
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
  DiskScript disk;
  disk.fail_reads = EIO;
  KvStoreOptions options = Options();
  UseDisk(disk, options);
  const auto reader = OpenWith(options);  // beside the first one
  EXPECT_EQ(ReadAll(*reader, tokens), 0);
  EXPECT_GE(reader->counters().failed_reads, 1u);
}

TEST_F(KvStoreTest, ASecondProcessReadsWhatTheFirstOneWrites) {
  const auto a = Tokens(1, 3);
  const auto b = Tokens(2, 3);
  auto first = Open(4);
  WriteAll(*first, a);
  while (first->counters().blocks_written < 3) std::this_thread::yield();
  const auto second = OpenByFrames(4);
  EXPECT_FALSE(second->writable());
  const auto late = Open(4);
  EXPECT_EQ(ReadAll(*second, a), 3);
  EXPECT_EQ(WriteAll(*second, b), 0);
  EXPECT_TRUE(second->takes_none());
  // What has been replaced meanwhile does not have its checksum; what was read before does.
  WriteAll(*first, b);
  while (first->counters().blocks_written < 6) std::this_thread::yield();
  EXPECT_EQ(ReadAll(*late, a), 0);
  EXPECT_EQ(ReadAll(*second, a), 3);
  first.reset();
  const auto third = Open(4);
  EXPECT_TRUE(third->writable());
  EXPECT_EQ(ReadAll(*third, b), 3);
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
