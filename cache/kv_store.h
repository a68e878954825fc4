// KvStore: prefix blocks of keys and values beyond the pools (kv_block_pool.h), in host memory and
// on disk, with recurrent states behind some prefixes. What is on disk outlives the process.
//
// Blocks are found as in a KvBlockPool, by all the tokens that lead to them, and leave in the same
// order: the least recently used one first, when its slot is needed. Frames of host memory
// (kv_frames.h) hold blocks on their way to the disk and from there, and as many of those that were
// used last as there is room for. Without a disk each slot is a frame. A state is kept as blocks
// behind its prefix, whose tokens no prompt has; it is there when all of them are.
//
// Blocks are written behind and handed over by a thread of the store's own, with a few that help it
// to copy. What the system's cache of files has goes straight into the pools; for the rest it keeps
// several reads of the disk in flight, each of neighbouring slots, into frames, and reads what will
// be asked for ahead. While it has nothing to do after the start it has the kernel give the memory
// that stored blocks will need.
// A disk that fails, or is full, costs blocks and a warning, nothing else: after a write that
// failed nothing is taken for a while.
//
// Thread contract: one thread (the engine's) calls; what it is told, and what Stop returns from,
// holds for memory that the store's thread writes. No call waits for the disk, but Close and the
// constructor.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cache/kv_block_copies.h"
#include "cache/kv_block_pool.h"
#include "cache/kv_frames.h"
#include "cache/kv_memory.h"
#include "cache/kv_population.h"
#include "cache/kv_store_file.h"
#include "core/base/aligned_buffer.h"
#include "core/base/mutex.h"
#include "core/io/async_reader.h"

namespace moesaic {

// Monotone, but for the first four.
struct KvStoreCounters {
  uint64_t blocks = 0;         // that are kept
  uint64_t bytes = 0;          // of their slots
  uint64_t memory_blocks = 0;  // of these, in host memory
  uint64_t memory_bytes = 0;
  uint64_t from_memory = 0;  // blocks handed over that were there
  uint64_t from_disk = 0;    // and that were read for it
  uint64_t blocks_written = 0;
  uint64_t bytes_read = 0;  // of the disk, ahead as well
  uint64_t bytes_written = 0;
  uint64_t evicted = 0;
  uint64_t left_memory = 0;   // blocks that are on disk alone since
  uint64_t failed_reads = 0;  // damaged blocks, too
  uint64_t failed_writes = 0;
};

struct KvStoreOptions {
  std::filesystem::path directory;  // empty: in memory only
  uint64_t limit_bytes = 0;         // of the directory
  uint64_t memory_bytes = 0;        // beside blocks on their way
  std::string key;                  // KvStoreShape
  int64_t block_tokens = 0;
  KvMemory memory;    // of the pools; outlives the store's thread
  size_t groups = 1;  // of blocks
  // Of the pools, where their number never changes: memory for as many of them as there are stored
  // blocks is touched ahead. 0: none is.
  int64_t pool_blocks = 0;
  // Of the file of blocks, a number of reads at a time; null: OpenForwardReader's.
  std::function<std::unique_ptr<AsyncReader>(const std::filesystem::path& file, int depth)>
      open_reader = nullptr;
  // By which what the system's cache of files has goes past the frames, but where memory_bytes are
  // there for what was used last. Null: nothing does.
  KvBlockCopies::ReadCached read_cached = ReadIfCached;
};

class KvStore {
 public:
  using Clock = std::chrono::steady_clock;
  using ReadId = uint64_t;

  // `progress` is called by the store's thread when a read has ended, a place for a write has
  // become free or all is written; not before the first call of Read or Write. Throws as
  // KvStoreFile and OpenForwardReader do, and Error(kInvalidArgument) where no block fits.
  KvStore(const KvStoreOptions& options, std::function<void()> progress,
          FileCalls& calls = FileCalls::System());
  ~KvStore();  // closes
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // Beside the system's own cache of files, of a store with a directory or without.
  static uint64_t MemoryBytes(const KvStoreShape& shape, bool on_disk, uint64_t limit_bytes,
                              uint64_t memory_bytes);

  bool writable() const { return file_ == nullptr || file_->writable(); }
  int64_t slots() const { return num_slots_; }
  int64_t frames() const { return num_frames_; }
  uint64_t slot_bytes() const { return stride_; }  // of a frame, too
  KvStoreCounters counters() const EXCLUDES(mutex_);

  // The ids of the first blocks of `tokens` that are there, which counts as a use of them. What is
  // left of `tokens` beyond whole blocks is ignored.
  std::vector<PrefixId> Find(std::span<const int32_t> tokens) EXCLUDES(mutex_);
  // The id of the block that holds `tokens` behind `parent`; a use of it.
  std::optional<PrefixId> FindBlock(PrefixId parent, std::span<const int32_t> tokens)
      EXCLUDES(mutex_);
  // Whether the state behind this prefix is there; a use of it.
  bool FindState(PrefixId prefix) EXCLUDES(mutex_);
  // The id of a part of the state, behind the prefix or the part before.
  std::optional<PrefixId> FindStatePart(PrefixId parent, int64_t part) EXCLUDES(mutex_);
  int64_t state_parts() const { return memory_.state_parts(); }

  // Whether Write would take a block now. Where it would not, `progress` says when to ask again.
  bool CanTake() EXCLUDES(mutex_);
  bool takes_none() const EXCLUDES(mutex_);  // and will not for a while
  // Copies the block of these numbers, one of each group, which holds `tokens` behind `parent`, and
  // has it written. Returns its id; kEmptyPrefix: not taken.
  PrefixId Write(PrefixId parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks)
      EXCLUDES(mutex_);
  // Likewise a part of the state in this slot. `parent` as FindStatePart's.
  PrefixId WriteStatePart(PrefixId parent, int64_t part, int32_t state_slot) EXCLUDES(mutex_);

  // Hands the blocks that hold `tokens` behind `parent` over, one after the other, into those of
  // these numbers [blocks, groups], which are nobody else's until Stop. `ahead`: tokens behind them
  // that will be asked for next.
  ReadId Read(PrefixId parent, std::span<const int32_t> tokens, std::span<const int32_t> blocks,
              std::span<const int32_t> ahead) EXCLUDES(mutex_);
  // The state behind this prefix, part by part, into this slot. A state of which a part is missing
  // is none.
  ReadId ReadState(PrefixId prefix, int32_t state_slot) EXCLUDES(mutex_);
  struct Progress {
    int64_t done = 0;         // the first so many are there
    int64_t from_memory = 0;  // of these, nothing was read for
    bool ended = false;       // and no more will come
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
    int32_t frame = KvFrames::kNone;  // that has the block
    bool written = false;             // to the disk
    bool dirty = false;               // `used` is not what the file has
  };
  struct Content {
    enum class State : uint8_t { kNone, kComes, kWhole, kDamaged };
    State state = State::kNone;
    bool read = false;  // from the disk, and not handed over yet
  };
  using Place = KvBlockCopies::Place;
  struct PendingWrite {
    int32_t slot = 0;
    std::vector<int32_t> tokens;
  };
  // Blocks one behind the other.
  struct Chain {
    PrefixId last = kEmptyPrefix;      // of the first `planned`
    std::vector<int32_t> tokens = {};  // [blocks, block_tokens]
    size_t planned = 0;                // are held, read already or asked for
    size_t wanted = 0;                 // blocks; those behind are read ahead
    bool broken = false;               // the next one is not there
  };
  struct PendingRead {
    ReadId id = 0;
    Chain chain;
    std::vector<int32_t> blocks;  // [wanted, groups]
    int32_t state_slot = -1;      // of a read of a state
    // Frames that are held, of the blocks that were planned and not handed over.
    std::deque<int32_t> held = {};
    Progress progress = {};
  };
  // A read of the disk: neighbouring slots into neighbouring frames.
  struct Run {
    int32_t slot = 0;
    int32_t frame = 0;
    std::vector<KvStoreEntry> entries;
  };

  void Load() EXCLUDES(mutex_);
  void Thread() EXCLUDES(mutex_);
  void Notify() REQUIRES(mutex_);
  void Serve(ReadId id) EXCLUDES(mutex_);
  void Plan(Chain& chain, std::deque<int32_t>* held) REQUIRES(mutex_);
  bool CanAsk() const REQUIRES(mutex_);
  void Ask(int32_t slot, int32_t frame) REQUIRES(mutex_);
  void SubmitAsked() REQUIRES(mutex_);
  void TakeReads(int64_t timeout_us) EXCLUDES(mutex_);
  void EndRun(Run& run, int64_t result) EXCLUDES(mutex_);
  enum class Handed { kNothing, kBlocks, kEnd };
  Handed HandOver(ReadId id) EXCLUDES(mutex_);
  Handed HandOverCached(ReadId id) EXCLUDES(mutex_);
  void CountDone(PendingRead& read, int32_t slot, bool was_read) REQUIRES(mutex_);
  Handed EndIfAllAreDone(PendingRead& read) REQUIRES(mutex_);
  Place PlaceOf(const PendingRead& read, size_t block) const;
  void EndRead(PendingRead& read) REQUIRES(mutex_);
  void ReadAhead() EXCLUDES(mutex_);
  void TellPlace() EXCLUDES(mutex_);
  void WriteNext() EXCLUDES(mutex_);
  void WriteUses() EXCLUDES(mutex_);
  void Populate(int64_t pool_blocks) EXCLUDES(mutex_);

  PrefixId Take(PrefixId parent, std::span<const int32_t> tokens, const Place& from)
      EXCLUDES(mutex_);
  ReadId Add(PendingRead read) EXCLUDES(mutex_);
  bool Throttled() const REQUIRES(mutex_);
  bool HasPlace() const REQUIRES(mutex_);
  PendingRead* FindRead(ReadId id) REQUIRES(mutex_);
  const PendingRead* FindRead(ReadId id) const REQUIRES(mutex_) {
    return const_cast<KvStore*>(this)->FindRead(id);
  }
  PendingRead* NextRead() REQUIRES(mutex_);
  std::optional<KvFrames::Taken> TakeFrame(int32_t slot) REQUIRES(mutex_);
  void LetGo(int32_t frame) REQUIRES(mutex_);
  void Use(std::span<const int32_t> slots) REQUIRES(mutex_);
  void Use(int32_t slot) REQUIRES(mutex_);
  void MarkUsed(int32_t slot) REQUIRES(mutex_);
  Slot& At(int32_t slot) REQUIRES(mutex_) { return slots_[static_cast<size_t>(slot)]; }
  Content& ContentOf(int32_t frame) REQUIRES(mutex_) {
    return contents_[static_cast<size_t>(frame)];
  }
  std::span<std::byte> Frame(int32_t number);
  std::vector<int32_t> StateTokens(int64_t part) const;
  std::span<const int32_t> TokensOf(const Chain& chain, size_t block) const;
  std::string name() const;
  size_t block_tokens() const { return static_cast<size_t>(shape_.block_tokens); }

  const KvMemory memory_;
  const KvStoreShape shape_;
  const uint64_t stride_;  // of slots and frames
  const size_t groups_;
  const std::function<void()> progress_;
  const std::unique_ptr<KvStoreFile> file_;  // null: in memory only; of the thread, once it runs
  const int64_t num_frames_;
  const int64_t num_slots_;
  const int64_t most_dirty_;  // blocks on their way to the disk
  AlignedBuffer buffer_;      // [frames, stride]

  // The thread's, once it runs.
  KvBlockCopies copies_;
  const KvBlockCopies::ReadCached read_cached_;  // null: see KvStoreOptions
  std::optional<KvPopulation> population_;
  std::unique_ptr<AsyncReader> reader_;
  std::vector<Run> runs_;  // by tag
  std::vector<size_t> free_runs_;
  std::vector<ReadCompletion> completions_;

  mutable Mutex mutex_;
  CondVar changed_;                                        // for the thread
  CondVar done_;                                           // for Stop and WaitToTake
  std::unique_ptr<KvBlockPool> index_ GUARDED_BY(mutex_);  // of slots
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  // A frame that is held holds its slot in the index.
  KvFrames frames_ GUARDED_BY(mutex_);
  std::vector<Content> contents_ GUARDED_BY(mutex_);  // [frames]
  uint64_t uses_ GUARDED_BY(mutex_) = 0;
  std::vector<int32_t> dirty_ GUARDED_BY(mutex_);
  std::deque<PendingWrite> writes_ GUARDED_BY(mutex_);
  int64_t dirty_frames_ GUARDED_BY(mutex_) = 0;    // of writes, those under way as well
  bool asked_to_take_ GUARDED_BY(mutex_) = false;  // and was told to wait
  std::deque<PendingRead> reads_ GUARDED_BY(mutex_);
  std::optional<Chain> ahead_ GUARDED_BY(mutex_);   // of a read that has ended
  std::optional<size_t> asked_ GUARDED_BY(mutex_);  // the run that may get longer
  int in_flight_ GUARDED_BY(mutex_) = 0;            // runs
  bool waits_for_reads_ GUARDED_BY(mutex_) = false;
  ReadId last_read_ GUARDED_BY(mutex_) = 0;
  ReadId handing_over_ GUARDED_BY(mutex_) = 0;  // a block of this read
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
