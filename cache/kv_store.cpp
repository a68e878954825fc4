#include "cache/kv_store.h"

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
constexpr uint64_t kBufferBytes = uint64_t{32} << 20;
constexpr size_t kMostBuffers = 1024;

// A disk that was full is asked again after so long.
constexpr std::chrono::seconds kAfterFailure{30};
// A reader looks at what the writer has done this often at most.
constexpr std::chrono::seconds kBetweenLoads{1};

size_t BuffersOf(uint64_t block_bytes) {
  const uint64_t fit = kBufferBytes / std::max<uint64_t>(block_bytes, 1);
  return static_cast<size_t>(std::clamp<uint64_t>(fit, 2, kMostBuffers)) + 1;
}

uint64_t BufferBytes(uint64_t block_bytes) {
  return RoundUp(block_bytes, AlignedBuffer::kPageBytes);
}

}  // namespace

uint64_t KvStore::MemoryBytes(const KvStoreShape& shape, uint64_t limit_bytes) {
  const auto slots = static_cast<uint64_t>(KvStoreFile::SlotsFor(shape, limit_bytes));
  // The pool's record, its buckets and the tokens of a block, and this store's own.
  const uint64_t slot_bytes =
      48 + 16 + static_cast<uint64_t>(shape.block_tokens) * sizeof(int32_t) + sizeof(Slot);
  return CheckedMul(slots, slot_bytes, "KV store") +
         BuffersOf(shape.block_bytes) * BufferBytes(shape.block_bytes);
}

KvStore::KvStore(const KvStoreOptions& options, std::function<void()> progress, FileCalls& calls)
    : memory_(options.memory),
      groups_(options.groups),
      progress_(std::move(progress)),
      file_(options.directory, {options.key, options.block_tokens, options.memory.block_bytes()},
            options.limit_bytes, calls),
      buffers_(BuffersOf(file_.shape().block_bytes) * BufferBytes(file_.shape().block_bytes)),
      num_buffers_(BuffersOf(file_.shape().block_bytes)) {
  {
    const MutexLock lock(mutex_);
    for (size_t b = 0; b + 1 < num_buffers_; ++b) free_buffers_.push_back(b);
  }
  Load();
  thread_ = std::thread([this] { Thread(); });
}

KvStore::~KvStore() { Close(); }

void KvStore::Close() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    for (PendingRead& read : reads_) read.progress.ended = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

std::span<std::byte> KvStore::Buffer(size_t number) {
  const uint64_t bytes = file_.shape().block_bytes;
  return buffers_.span().subspan(number * BufferBytes(bytes), bytes);
}

// Takes over what the file's index says. Blocks whose prefix is not there can never be found.
void KvStore::Load() {
  KvStoreFile::Index found;
  try {
    found = file_.ReadIndex();
  } catch (const Error& error) {
    LogWarn("{}; no block of it is used", error.what());
  }
  const int64_t tokens = file_.shape().block_tokens;
  auto index = std::make_unique<KvBlockPool>(file_.slots(), tokens);
  std::vector<Slot> slots(static_cast<size_t>(file_.slots()));
  std::vector<size_t> order(found.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return found.entries[a].id < found.entries[b].id; });
  std::unordered_set<PrefixId> reachable = {kEmptyPrefix};
  std::vector<size_t> usable;
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
    LogWarn("{}: {} entr{} damaged and left out", file_.index_path().string(), found.damaged,
            found.damaged == 1 ? "y is" : "ies are");
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
  counters.bytes = counters.blocks * file_.slot_bytes();
  return counters;
}

void KvStore::Use(int32_t slot) {
  At(slot).entry.used = ++uses_;
  MarkUsed(slot);
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
  // The last one first: what all else needs leaves last.
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    index_->Release(*slot);
    Use(*slot);
  }
  if (!writable() && Clock::now() - loaded_at_ > kBetweenLoads) load_again_ = true;
  if (load_again_ || !dirty_.empty()) changed_.NotifyAll();
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

bool KvStore::Throttled() const { return stop_ || !writable() || Clock::now() < write_again_at_; }

bool KvStore::CanTake() {
  const MutexLock lock(mutex_);
  asked_to_take_ = free_buffers_.empty();
  return !Throttled() && !free_buffers_.empty();
}

bool KvStore::takes_none() const {
  const MutexLock lock(mutex_);
  return Throttled();
}

PrefixId KvStore::Write(PrefixId parent, std::span<const int32_t> tokens,
                        std::span<const int32_t> blocks) {
  CHECK_EQ(tokens.size(), block_tokens());
  size_t buffer = 0;
  {
    const MutexLock lock(mutex_);
    if (Throttled() || free_buffers_.empty()) return kEmptyPrefix;
    buffer = free_buffers_.back();
    free_buffers_.pop_back();
  }
  memory_.Gather(blocks, Buffer(buffer));
  const MutexLock lock(mutex_);
  const uint64_t displaced = index_->counters().displaced;
  const std::optional<int32_t> slot = index_->Allocate();
  if (!slot) {  // all are being read or written
    free_buffers_.push_back(buffer);
    return kEmptyPrefix;
  }
  counters_.evicted += index_->counters().displaced - displaced;
  const PrefixId id = index_->Seal(*slot, parent, tokens);
  At(*slot) = {.entry = {.id = id, .parent = parent, .used = ++uses_}};
  writes_.push_back({*slot, {tokens.begin(), tokens.end()}, buffer});
  changed_.NotifyAll();
  return id;
}

KvStore::ReadId KvStore::Read(PrefixId parent, std::span<const int32_t> tokens,
                              std::span<const int32_t> blocks, std::span<const int32_t> ahead) {
  CHECK_EQ(tokens.size() / block_tokens() * groups_, blocks.size());
  const MutexLock lock(mutex_);
  reads_.push_back({.id = ++last_read_,
                    .parent = parent,
                    .tokens = {tokens.begin(), tokens.end()},
                    .blocks = {blocks.begin(), blocks.end()},
                    .ahead = {ahead.begin(), ahead.end()},
                    .progress = {.done = 0, .ended = stop_}});
  changed_.NotifyAll();
  return last_read_;
}

KvStore::PendingRead* KvStore::FindRead(ReadId id) {
  const auto found = std::find_if(reads_.begin(), reads_.end(),
                                  [&](const PendingRead& read) { return read.id == id; });
  return found != reads_.end() ? &*found : nullptr;
}

KvStore::Progress KvStore::Poll(ReadId read) const {
  const MutexLock lock(mutex_);
  const PendingRead* const found = FindRead(read);
  CHECK(found != nullptr);
  return found->progress;
}

void KvStore::Stop(ReadId read) {
  const MutexLock lock(mutex_);
  PendingRead* const found = FindRead(read);
  CHECK(found != nullptr);
  found->progress.ended = true;
  while (reading_ == read) done_.Wait(mutex_);
  std::erase_if(reads_, [&](const PendingRead& other) { return other.id == read; });
}

bool KvStore::WaitToTake(Clock::time_point until) {
  const MutexLock lock(mutex_);
  while (!Throttled() && free_buffers_.empty()) {
    if (!done_.WaitUntil(mutex_, until)) break;
  }
  return !Throttled() && !free_buffers_.empty();
}

KvStore::PendingRead* KvStore::NextRead() {
  const auto found = std::find_if(reads_.begin(), reads_.end(),
                                  [](const PendingRead& read) { return !read.progress.ended; });
  return found != reads_.end() ? &*found : nullptr;
}

void KvStore::Thread() {
  pthread_setname_np(pthread_self(), "kv-store");
  for (;;) {
    enum class Work { kRead, kWrite, kUses, kLoad };
    Work work = Work::kRead;
    ReadId read = 0;
    {
      const MutexLock lock(mutex_);
      for (;;) {
        PendingRead* const next = NextRead();
        if (next != nullptr) {
          read = reading_ = next->id;
        } else if (!writes_.empty()) {
          work = Work::kWrite;
        } else if (!dirty_.empty()) {
          work = Work::kUses;
        } else if (stop_) {
          return;
        } else if (load_again_) {
          work = Work::kLoad;
        } else {
          changed_.Wait(mutex_);
          continue;
        }
        break;
      }
    }
    switch (work) {
      case Work::kRead:
        ReadNext(read);
        break;
      case Work::kWrite:
        WriteNext();
        break;
      case Work::kUses:
        WriteUses();
        break;
      case Work::kLoad:
        Load();
        break;
    }
  }
}

// Once, of what is read and of what will be, as stretches of slots.
void KvStore::TellSystem(ReadId id) {
  std::vector<int32_t> slots;
  {
    const MutexLock lock(mutex_);
    PendingRead& read = *FindRead(id);
    if (std::exchange(read.told, true)) return;
    PrefixId parent = read.parent;
    std::vector<int32_t> tokens = read.tokens;
    tokens.insert(tokens.end(), read.ahead.begin(), read.ahead.end());
    for (size_t at = 0; at + block_tokens() <= tokens.size(); at += block_tokens()) {
      const auto match = index_->Lookup(parent, std::span(tokens).subspan(at, block_tokens()));
      if (!match) break;
      index_->Release(match->block);
      if (!At(match->block).written) break;
      parent = match->prefix;
      slots.push_back(match->block);
    }
  }
  for (size_t first = 0; first < slots.size();) {
    size_t end = first + 1;
    while (end < slots.size() && slots[end] == slots[end - 1] + 1) ++end;
    file_.WillRead(slots[first], static_cast<int64_t>(end - first));
    first = end;
  }
}

// One block.
void KvStore::ReadNext(ReadId id) {
  TellSystem(id);
  int32_t slot = -1;
  KvStoreEntry entry;
  std::vector<int32_t> blocks(groups_);
  std::string problem;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      PendingRead& read = *FindRead(id);
      const auto done = static_cast<size_t>(read.progress.done);
      const auto match = index_->Lookup(
          read.parent, std::span(read.tokens).subspan(done * block_tokens(), block_tokens()));
      if (!match) break;
      if (At(match->block).written) {
        slot = match->block;
        entry = At(slot).entry;
        std::copy_n(read.blocks.begin() + static_cast<std::ptrdiff_t>(done * groups_), groups_,
                    blocks.begin());
        break;
      }
      index_->Release(match->block);
    }
    WriteNext();  // it is on its way
  }
  bool whole = false;
  if (slot >= 0) {
    const std::span<std::byte> buffer = Buffer(num_buffers_ - 1);
    try {
      file_.ReadBlock(slot, buffer);
      whole = KvBlockChecksum(entry.id, buffer) == entry.checksum;
      if (!whole) problem = "a block does not have its checksum";
    } catch (const Error& error) {
      problem = error.what();
    }
    if (whole) memory_.Scatter(buffer, blocks);
  }
  bool ended = false;
  {
    const MutexLock lock(mutex_);
    PendingRead& read = *FindRead(id);
    if (whole) {
      ++read.progress.done;
      read.parent = entry.id;
      ++counters_.blocks_read;
      counters_.bytes_read += file_.shape().block_bytes;
      Use(slot);
    } else if (slot >= 0) {
      ++counters_.failed_reads;
      index_->Forget(slot);
      if (writable() && !std::exchange(warned_of_damage_, true)) {
        LogWarn(
            "{}: {}; it is computed again, as others that will be found (only the first is told)",
            file_.index_path().string(), problem);
      }
    }
    if (slot >= 0) index_->Release(slot);
    const bool all = static_cast<size_t>(read.progress.done) * groups_ == read.blocks.size();
    read.progress.ended = read.progress.ended || all || !whole;
    ended = read.progress.ended;
    reading_ = 0;
    done_.NotifyAll();
  }
  if (ended) progress_();
}

// The block that has waited longest.
void KvStore::WriteNext() {
  PendingWrite write;
  KvStoreEntry entry;
  bool throttled = false;
  {
    const MutexLock lock(mutex_);
    CHECK(!writes_.empty());
    write = std::move(writes_.front());
    writes_.pop_front();
    entry = At(write.slot).entry;
    throttled = Clock::now() < write_again_at_;
  }
  std::string problem;
  bool asked = false;
  if (!throttled) {
    const std::span<const std::byte> block = Buffer(write.buffer);
    entry.checksum = KvBlockChecksum(entry.id, block);
    try {
      file_.ClearEntry(write.slot);
      file_.WriteBlock(write.slot, block);
      file_.WriteEntry(write.slot, entry, write.tokens);
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
      counters_.bytes_written += file_.shape().block_bytes;
      if (std::exchange(write_failed_, false)) {
        LogInfo("{}: can be written again", file_.index_path().string());
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
    index_->Release(write.slot);
    free_buffers_.push_back(write.buffer);
    asked = std::exchange(asked_to_take_, false) || writes_.empty();
    done_.NotifyAll();
  }
  if (asked) progress_();
}

// When entries were used; what is lost of that is an order.
void KvStore::WriteUses() {
  std::vector<std::pair<int32_t, KvStoreEntry>> entries;
  std::vector<int32_t> tokens;
  {
    const MutexLock lock(mutex_);
    for (const int32_t slot : dirty_) {
      Slot& s = At(slot);
      s.dirty = false;
      // Of a slot that has another block by now there will be an entry of its own.
      if (!s.written || index_->prefix(slot) != s.entry.id) continue;
      entries.emplace_back(slot, s.entry);
      const std::span<const int32_t> held = index_->tokens(slot);
      tokens.insert(tokens.end(), held.begin(), held.end());
    }
    dirty_.clear();
  }
  try {
    for (size_t i = 0; i < entries.size(); ++i) {
      file_.WriteEntry(entries[i].first, entries[i].second,
                       std::span(tokens).subspan(i * block_tokens(), block_tokens()));
    }
  } catch (const Error& error) {
    LogDebug("{}", error.what());
  }
}

}  // namespace moesaic
