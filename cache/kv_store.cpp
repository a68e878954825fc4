#include "cache/kv_store.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

// Blocks on their way to the disk: what a step of a long prompt makes of a large model's, and not
// more than a small machine can spare.
constexpr uint64_t kOnTheirWayBytes = uint64_t{32} << 20;
constexpr int64_t kMostOnTheirWay = 1024;
constexpr int kReadsInFlight = 8;  // a disk's best rate (tests/bench/disk_read_bench)

constexpr std::ptrdiff_t kMostUses = 32;  // that are written at once: a read does not wait for more

// A disk that was full is asked again after so long.
constexpr std::chrono::seconds kAfterFailure{30};
// A reader looks at what the writer has done this often at most.
constexpr std::chrono::seconds kBetweenLoads{1};

int64_t BlocksOnTheirWay(uint64_t slot_bytes) {
  return std::clamp<int64_t>(static_cast<int64_t>(kOnTheirWayBytes / slot_bytes), 2,
                             kMostOnTheirWay);
}

// On disk one more than what is on its way there, for what is read.
int64_t FramesFor(const KvStoreShape& shape, bool on_disk, uint64_t limit_bytes,
                  uint64_t memory_bytes) {
  const uint64_t frame_bytes = KvStoreFile::SlotBytes(shape);
  const auto kept = static_cast<int64_t>(std::min<uint64_t>(memory_bytes / frame_bytes, INT32_MAX));
  if (!on_disk) return kept;
  return std::min(kept, KvStoreFile::SlotsFor(shape, limit_bytes)) + BlocksOnTheirWay(frame_bytes) +
         1;
}

std::unique_ptr<KvStoreFile> OpenFile(const KvStoreOptions& options, const KvStoreShape& shape,
                                      FileCalls& calls) {
  if (options.directory.empty()) return nullptr;
  return std::make_unique<KvStoreFile>(options.directory, shape, options.limit_bytes, calls);
}

std::unique_ptr<AsyncReader> OpenReader(const KvStoreOptions& options, const KvStoreFile& file) {
  if (options.open_reader) return options.open_reader(file.blocks_path(), kReadsInFlight);
  return OpenForwardReader(file.blocks_path(), kReadsInFlight);
}

}  // namespace

uint64_t KvStore::MemoryBytes(const KvStoreShape& shape, bool on_disk, uint64_t limit_bytes,
                              uint64_t memory_bytes) {
  const int64_t frames = FramesFor(shape, on_disk, limit_bytes, memory_bytes);
  const auto slots =
      static_cast<uint64_t>(on_disk ? KvStoreFile::SlotsFor(shape, limit_bytes) : frames);
  // The pool's record, its buckets and the tokens of a block, and this store's own.
  const uint64_t slot_bytes =
      48 + 16 + static_cast<uint64_t>(shape.block_tokens) * sizeof(int32_t) + sizeof(Slot);
  constexpr uint64_t kFrameRecordBytes = 32;
  return CheckedMul(slots, slot_bytes, "KV store") +
         CheckedMul(static_cast<uint64_t>(frames),
                    KvStoreFile::SlotBytes(shape) + kFrameRecordBytes, "KV store");
}

KvStore::KvStore(const KvStoreOptions& options, std::function<void()> progress, FileCalls& calls)
    : memory_(options.memory),
      shape_{options.key, options.block_tokens, options.memory.block_bytes()},
      stride_(KvStoreFile::SlotBytes(shape_)),
      groups_(options.groups),
      progress_(std::move(progress)),
      file_(OpenFile(options, shape_, calls)),
      num_frames_(FramesFor(shape_, file_ != nullptr, options.limit_bytes, options.memory_bytes)),
      num_slots_(file_ != nullptr ? file_->slots() : num_frames_),
      most_dirty_(BlocksOnTheirWay(stride_)),
      buffer_(static_cast<uint64_t>(num_frames_) * stride_),
      copies_(memory_),
      read_cached_(file_ != nullptr && options.memory_bytes == 0 ? options.read_cached : nullptr),
      frames_(num_frames_),
      contents_(static_cast<size_t>(num_frames_)) {
  if (num_frames_ < 1) {
    Fail(ErrorKind::kInvalidArgument,
         "--kv-store-memory: {} hold no block of {} tokens, which takes {}",
         FormatBytes(options.memory_bytes), shape_.block_tokens, FormatBytes(stride_));
  }
  if (file_ != nullptr) {
    reader_ = OpenReader(options, *file_);
    runs_.resize(kReadsInFlight);
    free_runs_.reserve(kReadsInFlight);
    for (size_t run = 0; run < runs_.size(); ++run) free_runs_.push_back(run);
  }
  Load();
  Populate(options.pool_blocks);
  thread_ = std::thread([this] { Thread(); });
}

KvStore::~KvStore() { Close(); }

void KvStore::Close() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    for (PendingRead& read : reads_) read.progress.ended = true;
    ahead_.reset();
    Notify();
  }
  if (thread_.joinable()) thread_.join();
}

// What restoring can need, and nothing where nothing is stored.
void KvStore::Populate(int64_t pool_blocks) {
  const MutexLock lock(mutex_);
  const int64_t stored = index_->sealed_blocks();
  if (stored == 0) return;
  const auto frames = static_cast<size_t>(std::min(stored, num_frames_)) * stride_;
  population_.emplace(memory_, std::min(stored, pool_blocks), buffer_.span().first(frames));
}

std::span<std::byte> KvStore::Frame(int32_t number) {
  return buffer_.span().subspan(static_cast<uint64_t>(number) * stride_, shape_.block_bytes);
}

std::string KvStore::name() const {
  return file_ != nullptr ? file_->index_path().string() : "--kv-store-memory";
}

// No prompt has such tokens.
std::vector<int32_t> KvStore::StateTokens(int64_t part) const {
  std::vector<int32_t> tokens(block_tokens());
  tokens[0] = static_cast<int32_t>(-1 - part);
  return tokens;
}

// Takes over what the file's index says. Blocks whose prefix is not there can never be found.
void KvStore::Load() {
  KvStoreFile::Index found;
  try {
    if (file_ != nullptr) found = file_->ReadIndex();
  } catch (const Error& error) {
    LogWarn("{}; no block of it is used", error.what());
  }
  const int64_t tokens = shape_.block_tokens;
  auto index = std::make_unique<KvBlockPool>(num_slots_, tokens);
  std::vector<Slot> slots(static_cast<size_t>(num_slots_));
  std::vector<size_t> order(found.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return found.entries[a].id < found.entries[b].id; });
  std::unordered_set<PrefixId> reachable = {kEmptyPrefix};
  std::vector<size_t> usable;
  usable.reserve(order.size());
  for (const size_t i : order) {
    const KvStoreEntry& entry = found.entries[i];
    index->SkipTo(entry.id);
    if (reachable.contains(entry.parent) && reachable.insert(entry.id).second) usable.push_back(i);
  }
  std::sort(usable.begin(), usable.end(),
            [&](size_t a, size_t b) { return found.entries[a].used < found.entries[b].used; });
  uint64_t uses = 0;
  for (const size_t i : usable) {
    const KvStoreEntry& entry = found.entries[i];
    uses = std::max(uses, entry.used);
    const std::span<const int32_t> of_block(found.tokens.data() + i * static_cast<size_t>(tokens),
                                            static_cast<size_t>(tokens));
    if (index->Adopt(found.slots[i], entry.id, entry.parent, of_block)) {
      slots[static_cast<size_t>(found.slots[i])] = {.entry = entry, .written = true};
    }
  }
  const MutexLock lock(mutex_);
  if (found.damaged > 0 && writable()) {
    LogWarn("{}: {} entr{} damaged and left out", name(), found.damaged,
            found.damaged == 1 ? "y is" : "ies are");
  }
  // Nobody holds a frame: no read is under way, and who loads again does not write.
  for (int32_t frame = 0; frame < num_frames_; ++frame) {
    const int32_t slot = frames_.slot(frame);
    if (slot == KvFrames::kNone) continue;
    Slot& now = slots[static_cast<size_t>(slot)];
    if (now.written && now.entry.id == At(slot).entry.id) {
      now.frame = frame;
    } else {
      frames_.Drop(frame);
    }
  }
  index_ = std::move(index);
  slots_ = std::move(slots);
  dirty_.clear();
  uses_ = uses;
  loaded_at_ = Clock::now();
  load_again_ = false;
}

KvStoreCounters KvStore::counters() const {
  const MutexLock lock(mutex_);
  KvStoreCounters counters = counters_;
  counters.blocks = static_cast<uint64_t>(index_->sealed_blocks());
  counters.bytes = counters.blocks * stride_;
  const int64_t free = frames_.available() - frames_.kept();
  counters.memory_blocks = static_cast<uint64_t>(num_frames_ - free);
  counters.memory_bytes = counters.memory_blocks * stride_;
  return counters;
}

void KvStore::Use(int32_t slot) {
  At(slot).entry.used = ++uses_;
  MarkUsed(slot);
}

// The last one first: what all else needs leaves last.
void KvStore::Use(std::span<const int32_t> slots) {
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    index_->Release(*slot);
    Use(*slot);
  }
}

// The file is to be told.
void KvStore::MarkUsed(int32_t slot) {
  Slot& s = At(slot);
  if (!writable() || !s.written || s.dirty) return;
  s.dirty = true;
  dirty_.push_back(slot);
}

std::vector<PrefixId> KvStore::Find(std::span<const int32_t> tokens) {
  std::vector<PrefixId> ids;
  std::vector<int32_t> slots;
  const MutexLock lock(mutex_);
  PrefixId parent = kEmptyPrefix;
  for (size_t at = 0; at + block_tokens() <= tokens.size(); at += block_tokens()) {
    const auto match = index_->Lookup(parent, tokens.subspan(at, block_tokens()));
    if (!match) break;
    parent = match->prefix;
    ids.push_back(parent);
    slots.push_back(match->block);
  }
  Use(slots);
  if (!writable() && Clock::now() - loaded_at_ > kBetweenLoads) load_again_ = true;
  if (load_again_ || !dirty_.empty()) Notify();
  return ids;
}

std::optional<PrefixId> KvStore::FindBlock(PrefixId parent, std::span<const int32_t> tokens) {
  const MutexLock lock(mutex_);
  const auto match = index_->Lookup(parent, tokens);
  if (!match) return std::nullopt;
  index_->Release(match->block);
  Use(match->block);
  return match->prefix;
}

bool KvStore::FindState(PrefixId prefix) {
  std::vector<int32_t> slots;
  const MutexLock lock(mutex_);
  PrefixId parent = prefix;
  for (int64_t part = 0; part < state_parts(); ++part) {
    const auto match = index_->Lookup(parent, StateTokens(part));
    if (!match) {
      for (const int32_t slot : slots) index_->Release(slot);
      return false;
    }
    parent = match->prefix;
    slots.push_back(match->block);
  }
  Use(slots);
  if (!dirty_.empty()) Notify();
  return !slots.empty();
}

std::optional<PrefixId> KvStore::FindStatePart(PrefixId parent, int64_t part) {
  return FindBlock(parent, StateTokens(part));
}

bool KvStore::Throttled() const { return stop_ || !writable() || Clock::now() < write_again_at_; }

bool KvStore::HasPlace() const {
  return file_ == nullptr || (dirty_frames_ < most_dirty_ && frames_.available() > 0);
}

bool KvStore::CanTake() {
  const MutexLock lock(mutex_);
  asked_to_take_ = !HasPlace();
  return !Throttled() && HasPlace();
}

bool KvStore::takes_none() const {
  const MutexLock lock(mutex_);
  return Throttled();
}

PrefixId KvStore::Write(PrefixId parent, std::span<const int32_t> tokens,
                        std::span<const int32_t> blocks) {
  return Take(parent, tokens, {.blocks = {blocks.begin(), blocks.end()}});
}

PrefixId KvStore::WriteStatePart(PrefixId parent, int64_t part, int32_t state_slot) {
  return Take(parent, StateTokens(part), {.blocks = {}, .state_slot = state_slot, .part = part});
}

PrefixId KvStore::Take(PrefixId parent, std::span<const int32_t> tokens, const Place& from) {
  CHECK_EQ(tokens.size(), block_tokens());
  int32_t slot = 0;
  int32_t frame = 0;
  {
    const MutexLock lock(mutex_);
    if (Throttled() || !HasPlace()) return kEmptyPrefix;
    const uint64_t displaced = index_->counters().displaced;
    const std::optional<int32_t> allocated = index_->Allocate();
    if (!allocated) return kEmptyPrefix;  // all are being read or written
    counters_.evicted += index_->counters().displaced - displaced;
    slot = *allocated;
    if (At(slot).frame != KvFrames::kNone) frames_.Drop(At(slot).frame);
    At(slot) = {};
    const std::optional<KvFrames::Taken> taken = TakeFrame(slot);
    CHECK(taken.has_value());
    frame = taken->frame;
    ++dirty_frames_;
  }
  if (from.state_slot >= 0) {
    memory_.GatherState(from.state_slot, from.part, Frame(frame));
  } else {
    memory_.Gather(from.blocks, Frame(frame));
  }
  const MutexLock lock(mutex_);
  const PrefixId id = index_->Seal(slot, parent, tokens);
  At(slot).entry = {.id = id, .parent = parent, .used = ++uses_};
  ContentOf(frame) = {.state = Content::State::kWhole};
  if (file_ != nullptr) {
    writes_.push_back({slot, {tokens.begin(), tokens.end()}});
    Notify();
  } else {
    --dirty_frames_;
    LetGo(frame);
  }
  return id;
}

// Held. A block that leaves its frame for it is on disk, or else nowhere.
std::optional<KvFrames::Taken> KvStore::TakeFrame(int32_t slot) {
  const std::optional<KvFrames::Taken> taken = frames_.Take(slot);
  if (!taken) return std::nullopt;
  if (taken->left != KvFrames::kNone) {
    CHECK(At(taken->left).written);
    At(taken->left).frame = KvFrames::kNone;
    ++counters_.left_memory;
  }
  At(slot).frame = taken->frame;
  ContentOf(taken->frame) = {};
  return taken;
}

void KvStore::LetGo(int32_t frame) {
  const int32_t slot = frames_.slot(frame);
  frames_.Release(frame);
  if (frames_.holds(frame) > 0) return;
  const bool forgotten = index_->prefix(slot) == kEmptyPrefix;
  index_->Release(slot);
  if (forgotten) {
    At(slot).frame = KvFrames::kNone;
    frames_.Drop(frame);
  }
  done_.NotifyAll();
}

bool KvStore::WaitToTake(Clock::time_point until) {
  const MutexLock lock(mutex_);
  while (!Throttled() && !HasPlace()) {
    if (!done_.WaitUntil(mutex_, until)) break;
  }
  return !Throttled() && HasPlace();
}

void KvStore::Notify() {
  changed_.NotifyAll();
  if (waits_for_reads_) reader_->Wake();
}

void KvStore::Thread() {
  pthread_setname_np(pthread_self(), "kv-store");
  for (;;) {
    enum class Work { kServe, kAhead, kWrite, kUses, kReads, kLoad, kPopulate };
    Work work = Work::kServe;
    ReadId read = 0;
    bool in_flight = false;
    {
      const MutexLock lock(mutex_);
      waits_for_reads_ = false;
      for (;;) {
        in_flight = in_flight_ > 0;
        PendingRead* const next = NextRead();
        if (next != nullptr) {
          read = next->id;
        } else if (ahead_ && CanAsk()) {
          work = Work::kAhead;
        } else if (!writes_.empty()) {
          work = Work::kWrite;
        } else if (!dirty_.empty()) {
          work = Work::kUses;
        } else if (in_flight) {
          work = Work::kReads;
          waits_for_reads_ = true;
        } else if (stop_) {
          return;
        } else if (load_again_) {
          work = Work::kLoad;
        } else if (population_ && !population_->done()) {
          work = Work::kPopulate;
        } else {
          changed_.Wait(mutex_);
          continue;
        }
        break;
      }
    }
    switch (work) {
      case Work::kServe:
        Serve(read);
        break;
      case Work::kAhead:
        ReadAhead();
        break;
      case Work::kWrite:
        WriteNext();
        if (in_flight) TakeReads(0);
        break;
      case Work::kUses:
        WriteUses();
        break;
      case Work::kReads:
        TakeReads(-1);
        break;
      case Work::kLoad:
        Load();
        break;
      case Work::kPopulate:
        population_->Next();
        break;
    }
    TellPlace();
  }
}

// Who was told to wait with a write.
void KvStore::TellPlace() {
  {
    const MutexLock lock(mutex_);
    if (!asked_to_take_ || !HasPlace()) return;
    asked_to_take_ = false;
  }
  progress_();
}

// The block that has waited longest.
void KvStore::WriteNext() {
  PendingWrite write;
  KvStoreEntry entry;
  int32_t frame = 0;
  bool throttled = false;
  {
    const MutexLock lock(mutex_);
    CHECK(!writes_.empty());
    write = std::move(writes_.front());
    writes_.pop_front();
    entry = At(write.slot).entry;
    frame = At(write.slot).frame;
    throttled = Clock::now() < write_again_at_;
  }
  std::string problem;
  bool all = false;
  if (!throttled) {
    const std::span<const std::byte> block = Frame(frame);
    entry.checksum = KvBlockChecksum(entry.id, block);
    try {
      file_->ClearEntry(write.slot);
      file_->WriteBlock(write.slot, block);
      file_->WriteEntry(write.slot, entry, write.tokens);
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  {
    const MutexLock lock(mutex_);
    if (problem.empty() && !throttled) {
      Slot& slot = At(write.slot);
      slot.entry.checksum = entry.checksum;
      slot.written = true;
      if (slot.entry.used != entry.used) MarkUsed(write.slot);  // in the meantime
      ++counters_.blocks_written;
      counters_.bytes_written += shape_.block_bytes;
      if (std::exchange(write_failed_, false)) {
        LogInfo("{}: can be written again", name());
      }
    } else {
      index_->Forget(write.slot);
      ++counters_.failed_writes;
      if (!problem.empty()) {
        write_again_at_ = Clock::now() + kAfterFailure;
        if (!std::exchange(write_failed_, true)) {
          LogWarn("keys and values are not kept for now: {}", problem);
        }
      }
    }
    --dirty_frames_;
    LetGo(frame);
    all = writes_.empty();
    if (all) asked_to_take_ = false;
  }
  if (all) progress_();
}

// When entries were used; what is lost of that is an order.
void KvStore::WriteUses() {
  std::vector<std::pair<int32_t, KvStoreEntry>> entries;
  std::vector<int32_t> tokens;
  {
    const MutexLock lock(mutex_);
    const auto first = dirty_.end() - std::min(std::ssize(dirty_), kMostUses);
    entries.reserve(static_cast<size_t>(kMostUses));
    for (const int32_t slot : std::span(first, dirty_.end())) {
      Slot& s = At(slot);
      s.dirty = false;
      // Of a slot that has another block by now there will be an entry of its own.
      if (!s.written || index_->prefix(slot) != s.entry.id) continue;
      entries.emplace_back(slot, s.entry);
      const std::span<const int32_t> held = index_->tokens(slot);
      tokens.insert(tokens.end(), held.begin(), held.end());
    }
    dirty_.erase(first, dirty_.end());
  }
  try {
    for (size_t i = 0; i < entries.size(); ++i) {
      file_->WriteEntry(entries[i].first, entries[i].second,
                        std::span(tokens).subspan(i * block_tokens(), block_tokens()));
    }
  } catch (const Error& error) {
    LogDebug("{}", error.what());
  }
}

}  // namespace moesaic
