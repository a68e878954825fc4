// KvStore: prefix blocks of keys and values beyond the pools (kv_block_pool.h), on disk. What it
// has outlives the process.
//
// Blocks are found as in a KvBlockPool, by all the tokens that lead to them, and leave in the same
// order: the least recently used one first, when its slot is needed. Blocks are written behind and
// read by a thread of the store's own. A disk that fails, or is full, costs blocks and a warning,
// nothing else: after a write that failed nothing is taken for a while.
//
// Thread contract: one thread (the engine's) calls; what it is told, and what Stop returns from,
// holds for memory that the store's thread reads and writes. No call waits for the disk, but Stop
// for the block that is being read, Close and the constructor.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cache/kv_block_pool.h"
#include "cache/kv_memory.h"
#include "cache/kv_store_file.h"
#include "core/base/aligned_buffer.h"
#include "core/base/mutex.h"

namespace moesaic {

// Monotone, but for `blocks` and `block_bytes`.
struct KvStoreCounters {
  uint64_t blocks = 0;       // that are kept
  uint64_t bytes = 0;        // of their slots
  uint64_t blocks_read = 0;  // and found whole
  uint64_t blocks_written = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t evicted = 0;
  uint64_t failed_reads = 0;  // damaged blocks, too
  uint64_t failed_writes = 0;
};

struct KvStoreOptions {
  std::filesystem::path directory;
  uint64_t limit_bytes = 0;
  std::string key;  // KvStoreShape
  int64_t block_tokens = 0;
  KvMemory memory;    // of the pools; outlives the store's thread
  size_t groups = 1;  // of blocks
};

class KvStore {
 public:
  using Clock = std::chrono::steady_clock;
  using ReadId = uint64_t;

  // `progress` is called by the store's thread when a read has ended, a place for a write has
  // become free or all is written; not before the first call of Read or Write. Throws as
  // KvStoreFile does.
  KvStore(const KvStoreOptions& options, std::function<void()> progress,
          FileCalls& calls = FileCalls::System());
  ~KvStore();  // closes
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Beside the system's own cache of files.
  static uint64_t MemoryBytes(const KvStoreShape& shape, uint64_t limit_bytes);

  bool writable() const { return file_.writable(); }
  int64_t slots() const { return file_.slots(); }
  const KvStoreFile& file() const { return file_; }
  KvStoreCounters counters() const EXCLUDES(mutex_);

  // The ids of the first blocks of `tokens` that are there, which counts as a use of them. What is
  // left of `tokens` beyond whole blocks is ignored.
  std::vector<PrefixId> Find(std::span<const int32_t> tokens) EXCLUDES(mutex_);

  // The id of the block that holds `tokens` behind `parent`; a use of it.
  std::optional<PrefixId> FindBlock(PrefixId parent, std::span<const int32_t> tokens)
      EXCLUDES(mutex_);

  // Whether Write would take a block now. Where it would not, `progress` says when to ask again.
  bool CanTake() EXCLUDES(mutex_);
  bool takes_none() const EXCLUDES(mutex_);  // and will not for a while
  // Copies the block of these numbers, one of each group, which holds `tokens` behind `parent`, and
  // has it written. Returns its id; kEmptyPrefix: not taken. It is not there yet.
  PrefixId Write(PrefixId parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks)
      EXCLUDES(mutex_);

  // Reads the blocks that hold `tokens` behind `parent` one after the other into those of these
  // numbers [blocks, groups], which are nobody else's until Stop. `ahead`: tokens behind them that
  // will be asked for next.
  ReadId Read(PrefixId parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks,
              std::span<const int32_t> ahead) EXCLUDES(mutex_);
  struct Progress {
    int64_t done = 0;    // the first so many are there
    bool ended = false;  // and no more will come
  };
  Progress Poll(ReadId read) const EXCLUDES(mutex_);
  // The read is over. Nothing is written to its blocks any more.
  void Stop(ReadId read) EXCLUDES(mutex_);

  // Waits until a write can be taken, or the time has come. False: it cannot.
  bool WaitToTake(Clock::time_point until) EXCLUDES(mutex_);
  // Ends the reads, writes what was taken, and takes no more.
  void Close() EXCLUDES(mutex_);

 private:
  struct Slot {
    KvStoreEntry entry;
    bool written = false;
    bool dirty = false;  // `used` is not what the file has
  };
  struct PendingWrite {
    int32_t slot = 0;
    std::vector<int32_t> tokens;
    size_t buffer = 0;
  };
  struct PendingRead {
    ReadId id = 0;
    PrefixId parent = kEmptyPrefix;  // of the next block
    std::vector<int32_t> tokens;     // [blocks, block_tokens]
    std::vector<int32_t> blocks;     // [blocks, groups]
    std::vector<int32_t> ahead = {};
    Progress progress = {};
    bool told = false;  // the system of what will be read
  };

  void Load() EXCLUDES(mutex_);
  void Thread() EXCLUDES(mutex_);
  void ReadNext(ReadId id) EXCLUDES(mutex_);
  void WriteNext() EXCLUDES(mutex_);
  void WriteUses() EXCLUDES(mutex_);
  void TellSystem(ReadId id) EXCLUDES(mutex_);
  bool Throttled() const REQUIRES(mutex_);
  PendingRead* FindRead(ReadId id) REQUIRES(mutex_);
  const PendingRead* FindRead(ReadId id) const REQUIRES(mutex_) {
    return const_cast<KvStore*>(this)->FindRead(id);
  }
  PendingRead* NextRead() REQUIRES(mutex_);
  void Use(int32_t slot) REQUIRES(mutex_);
  void MarkUsed(int32_t slot) REQUIRES(mutex_);
  Slot& At(int32_t slot) REQUIRES(mutex_) { return slots_[static_cast<size_t>(slot)]; }
  std::span<std::byte> Buffer(size_t number);
  size_t block_tokens() const { return static_cast<size_t>(file_.shape().block_tokens); }

  const KvMemory memory_;
  const size_t groups_;
  const std::function<void()> progress_;
  KvStoreFile file_;  // of the thread, once it runs
  AlignedBuffer buffers_;
  const size_t num_buffers_;  // the last one is for reads

  mutable Mutex mutex_;
  CondVar changed_;  // for the thread
  CondVar done_;     // for Stop and WaitToTake: a block was read or written
  std::unique_ptr<KvBlockPool> index_ GUARDED_BY(mutex_);  // of slots
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  uint64_t uses_ GUARDED_BY(mutex_) = 0;
  std::vector<int32_t> dirty_ GUARDED_BY(mutex_);
  std::deque<PendingWrite> writes_ GUARDED_BY(mutex_);
  std::vector<size_t> free_buffers_ GUARDED_BY(mutex_);
  bool asked_to_take_ GUARDED_BY(mutex_) = false;  // and was told to wait
  std::deque<PendingRead> reads_ GUARDED_BY(mutex_);
  ReadId last_read_ GUARDED_BY(mutex_) = 0;
  ReadId reading_ GUARDED_BY(mutex_) = 0;  // whose block is being read
  KvStoreCounters counters_ GUARDED_BY(mutex_);
  Clock::time_point write_again_at_ GUARDED_BY(mutex_) = Clock::time_point::min();
  bool write_failed_ GUARDED_BY(mutex_) = false;
  bool warned_of_damage_ GUARDED_BY(mutex_) = false;
  Clock::time_point loaded_at_ GUARDED_BY(mutex_);
  bool load_again_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace moesaic
