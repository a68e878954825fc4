// What tests of a store of prefix blocks begin with: pools whose memory a test fills and looks at,
// and disks that fail or hold.
#pragma once

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/kv_store.h"
#include "core/base/mutex.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {

namespace fs = std::filesystem;

inline constexpr int64_t kTokens = 4;  // of a block
inline constexpr int kPoolBlocks = 8;
inline constexpr uint64_t kBlockBytes = 3 * 640 + 2 * 192;
inline constexpr uint64_t kStoreSlotBytes = 4096 + 64;  // and an entry of the index

// Reads all that `to` has room for, from the disk where it must.
inline bool ReadPieces(int file, uint64_t offset, std::span<const iovec> to) {
  ssize_t bytes = 0;
  for (const iovec& part : to) bytes += static_cast<ssize_t>(part.iov_len);
  return preadv(file, to.data(), static_cast<int>(to.size()), static_cast<off_t>(offset)) == bytes;
}

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

  KvStoreOptions Options(int64_t slots = 64) const {
    return {.directory = place_.path() / "store",
            .limit_bytes = kKvStoreHeaderBytes + static_cast<uint64_t>(slots) * kStoreSlotBytes,
            .memory_bytes = 0,
            .key = "model",
            .block_tokens = kTokens,
            .memory = memory_,
            .groups = 2};
  }
  std::unique_ptr<KvStore> OpenWith(const KvStoreOptions& options,
                                    FileCalls& calls = FileCalls::System()) {
    return std::make_unique<KvStore>(
        options, [this] { progress_.fetch_add(1); }, calls);
  }
  std::unique_ptr<KvStore> Open(int64_t slots = 64, FileCalls& calls = FileCalls::System(),
                                const std::string& key = "model") {
    KvStoreOptions options = Options(slots);
    options.key = key;
    return OpenWith(options, calls);
  }

  // A store that does not ask the system's cache of files: all goes by frames.
  std::unique_ptr<KvStore> OpenByFrames(int64_t slots = 64) {
    KvStoreOptions options = Options(slots);
    options.read_cached = nullptr;
    return OpenWith(options);
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
  std::atomic<int> fail_writes{0};              // with this errno
  std::atomic<int64_t> writes_left{INT64_MAX};  // before the process is "killed"

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
};

// What a disk does, and was asked for.
struct DiskScript {
  std::atomic<int> fail_reads{0};  // with this errno
  std::atomic<bool> hold{false};   // reads end later
  std::atomic<int> in_flight{0};
  std::atomic<int> most_in_flight{0};
  std::atomic<int> reads{0};
  std::atomic<uint64_t> most_bytes{0};  // of one
};

class ScriptedDisk : public AsyncReader {
 public:
  ScriptedDisk(std::unique_ptr<AsyncReader> reader, DiskScript& script)
      : reader_(std::move(reader)), script_(script) {}

  ReadBackend backend() const override { return reader_->backend(); }
  bool aligned_only() const override { return reader_->aligned_only(); }
  int free_slots() const override { return reader_->free_slots(); }
  void Submit(const ReadRequest& request) override {
    ++script_.reads;
    script_.most_bytes = std::max(script_.most_bytes.load(), uint64_t{request.bytes});
    script_.most_in_flight = std::max(script_.most_in_flight.load(), ++script_.in_flight);
    reader_->Submit(request);
  }
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    while (script_.hold.load() && timeout_us != 0) std::this_thread::yield();
    if (script_.hold.load()) return;
    const size_t before = out.size();
    reader_->Wait(out, timeout_us);
    for (size_t i = before; i < out.size(); ++i) {
      --script_.in_flight;
      if (const int error = script_.fail_reads.load(); error != 0) out[i].result = -error;
    }
  }
  void Wake() override { reader_->Wake(); }

 private:
  const std::unique_ptr<AsyncReader> reader_;
  DiskScript& script_;
};

// Of all reads: what the system's cache of files has is not asked for beside it.
inline void UseDisk(DiskScript& script, KvStoreOptions& options) {
  options.read_cached = nullptr;
  options.open_reader = [&script](const fs::path& file, int depth) {
    return std::make_unique<ScriptedDisk>(OpenAsyncReader({file}, ReadBackend::kBuffered, depth),
                                          script);
  };
}

}  // namespace moesaic
