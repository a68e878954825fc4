// How a KvStore hands blocks over: from frames of host memory, into which it reads from the disk
// what is not there.
#include <algorithm>
#include <utility>

#include "cache/kv_store.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/logging.h"

namespace moesaic {
namespace {

// Of one read of the disk, where neighbouring slots are wanted.
constexpr uint64_t kMostRunBytes = uint64_t{1} << 20;

}  // namespace

KvStore::ReadId KvStore::Read(PrefixId parent, std::span<const int32_t> tokens,
                              std::span<const int32_t> blocks, std::span<const int32_t> ahead) {
  const size_t wanted = tokens.size() / block_tokens();
  CHECK_EQ(wanted * groups_, blocks.size());
  // What is read ahead must not push itself out.
  const size_t most_ahead = static_cast<size_t>(num_frames_) / 2 * block_tokens();
  ahead = ahead.first(std::min(ahead.size() / block_tokens() * block_tokens(), most_ahead));
  Chain chain = {
      .last = parent, .tokens = {tokens.begin(), tokens.end()}, .planned = 0, .wanted = wanted};
  chain.tokens.insert(chain.tokens.end(), ahead.begin(), ahead.end());
  return Add({.chain = std::move(chain), .blocks = {blocks.begin(), blocks.end()}});
}

KvStore::ReadId KvStore::ReadState(PrefixId prefix, int32_t state_slot) {
  Chain chain = {.last = prefix};
  chain.wanted = static_cast<size_t>(state_parts());
  for (int64_t part = 0; part < state_parts(); ++part) {
    const std::vector<int32_t> tokens = StateTokens(part);
    chain.tokens.insert(chain.tokens.end(), tokens.begin(), tokens.end());
  }
  return Add({.chain = std::move(chain), .blocks = {}, .state_slot = state_slot});
}

KvStore::ReadId KvStore::Add(PendingRead read) {
  CHECK_GT(read.chain.wanted, 0u);
  const MutexLock lock(mutex_);
  read.id = ++last_read_;
  read.progress.ended = stop_;
  ahead_.reset();  // this one is more urgent, and has its own
  reads_.push_back(std::move(read));
  Notify();
  return last_read_;
}

KvStore::PendingRead* KvStore::FindRead(ReadId id) {
  const auto found = std::find_if(reads_.begin(), reads_.end(),
                                  [&](const PendingRead& read) { return read.id == id; });
  return found != reads_.end() ? &*found : nullptr;
}

KvStore::PendingRead* KvStore::NextRead() {
  const auto found = std::find_if(reads_.begin(), reads_.end(),
                                  [](const PendingRead& read) { return !read.progress.ended; });
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
  while (handing_over_ == read) done_.Wait(mutex_);
  EndRead(*found);
  std::erase_if(reads_, [&](const PendingRead& other) { return other.id == read; });
}

// Nothing more is handed over. The rest of what is to be read ahead still is, when all went well.
void KvStore::EndRead(PendingRead& read) {
  read.progress.ended = true;
  for (const int32_t frame : read.held) LetGo(frame);
  read.held.clear();
  const bool all = static_cast<size_t>(read.progress.done) == read.chain.wanted;
  if (all && !stop_ && read.chain.tokens.size() > read.chain.planned * block_tokens()) {
    ahead_ = std::move(read.chain);
  }
  read.chain.tokens.clear();
}

std::span<const int32_t> KvStore::TokensOf(const Chain& chain, size_t block) const {
  return std::span(chain.tokens).subspan(block * block_tokens(), block_tokens());
}

// Blocks of the read that has waited longest, or what it waits for.
void KvStore::Serve(ReadId id) {
  const Handed cached = HandOverCached(id);
  if (cached == Handed::kEnd) return progress_();
  if (cached == Handed::kBlocks) return;
  bool in_flight = false;
  {
    const MutexLock lock(mutex_);
    PendingRead* const read = FindRead(id);
    if (read == nullptr || read->progress.ended) return;
    Plan(read->chain, &read->held);
    in_flight = in_flight_ > 0;
  }
  const Handed handed = HandOver(id);
  if (handed == Handed::kEnd) return progress_();
  if (in_flight) return TakeReads(handed == Handed::kNothing ? -1 : 0);
  if (handed == Handed::kBlocks) return;
  // All frames have blocks that are on their way to the disk, or just being copied for it.
  {
    const MutexLock lock(mutex_);
    if (writes_.empty()) {
      if (dirty_frames_ > 0) changed_.Wait(mutex_);
      return;
    }
  }
  WriteNext();
}

// Holds the frames of blocks that are in memory, and has the disk asked for the others, as long as
// there are frames and reads to be had.
void KvStore::Plan(Chain& chain, std::deque<int32_t>* held) {
  while (!chain.broken && chain.planned * block_tokens() < chain.tokens.size()) {
    const bool ahead = chain.planned >= chain.wanted;
    const auto match = index_->Lookup(chain.last, TokensOf(chain, chain.planned));
    chain.broken = !match;
    if (!match) break;
    const int32_t slot = match->block;
    int32_t frame = At(slot).frame;
    if (frame == KvFrames::kNone) {
      if (!CanAsk()) {
        index_->Release(slot);
        break;
      }
      frame = TakeFrame(slot)->frame;
      Ask(slot, frame);
      if (!ahead) frames_.Hold(frame);
    } else if (ahead) {
      index_->Release(slot);
    } else {
      if (frames_.holds(frame) > 0) index_->Release(slot);  // it holds the slot already
      frames_.Hold(frame);
    }
    if (!ahead) held->push_back(frame);
    chain.last = match->prefix;
    ++chain.planned;
  }
  SubmitAsked();
}

bool KvStore::CanAsk() const { return !free_runs_.empty() && frames_.available() > 0; }

void KvStore::Ask(int32_t slot, int32_t frame) {
  if (asked_) {
    const Run& run = runs_[*asked_];
    const auto count = static_cast<int32_t>(run.entries.size());
    const bool next = slot == run.slot + count && frame == run.frame + count;
    if (!next || static_cast<uint64_t>(count + 1) * stride_ > kMostRunBytes) SubmitAsked();
  }
  if (!asked_) {
    asked_ = free_runs_.back();
    free_runs_.pop_back();
    runs_[*asked_].slot = slot;
    runs_[*asked_].frame = frame;
    runs_[*asked_].entries.clear();
  }
  runs_[*asked_].entries.push_back(At(slot).entry);
  ContentOf(frame) = {.state = Content::State::kComes, .read = true};
}

void KvStore::SubmitAsked() {
  if (!asked_) return;
  const size_t tag = *std::exchange(asked_, std::nullopt);
  const Run& run = runs_[tag];
  ReadRequest request;
  request.offset = static_cast<uint64_t>(run.slot) * stride_;
  request.bytes = static_cast<uint32_t>(run.entries.size() * stride_);
  request.destination = Frame(run.frame).data();
  request.tag = tag;
  reader_->Submit(request);
  ++in_flight_;
}

void KvStore::ReadAhead() {
  const MutexLock lock(mutex_);
  if (!ahead_) return;
  Plan(*ahead_, nullptr);
  if (ahead_->broken || ahead_->planned * block_tokens() >= ahead_->tokens.size()) ahead_.reset();
}

void KvStore::TakeReads(int64_t timeout_us) {
  completions_.clear();
  reader_->Wait(completions_, timeout_us);
  for (const ReadCompletion& completion : completions_) {
    EndRun(runs_[completion.tag], completion.result);
    free_runs_.push_back(completion.tag);
  }
}

void KvStore::EndRun(Run& run, int64_t result) {
  std::string problem;
  const auto end_of = [&](size_t i) {
    return static_cast<int64_t>(i * stride_ + shape_.block_bytes);
  };
  std::vector<uint64_t> checksums(run.entries.size());  // of those that were read
  copies_.ForEach(run.entries.size(), [&](size_t i) {
    if (result < end_of(i)) return;
    checksums[i] = KvBlockChecksum(run.entries[i].id, Frame(run.frame + static_cast<int32_t>(i)));
  });
  std::vector<bool> whole(run.entries.size());
  for (size_t i = 0; i < run.entries.size(); ++i) {
    if (result < 0) {
      problem = "cannot read: " + ErrnoMessage(static_cast<int>(-result));
    } else if (result < end_of(i)) {
      problem = "the file of blocks ends early";
    } else if (checksums[i] != run.entries[i].checksum) {
      problem = "a block does not have its checksum";
    } else {
      whole[i] = true;
    }
  }
  const MutexLock lock(mutex_);
  --in_flight_;
  for (size_t i = 0; i < run.entries.size(); ++i) {
    const int32_t frame = run.frame + static_cast<int32_t>(i);
    ContentOf(frame).state = whole[i] ? Content::State::kWhole : Content::State::kDamaged;
    if (whole[i]) {
      counters_.bytes_read += shape_.block_bytes;
    } else {
      ++counters_.failed_reads;
      index_->Forget(run.slot + static_cast<int32_t>(i));
    }
    LetGo(frame);
  }
  if (!problem.empty() && writable() && !std::exchange(warned_of_damage_, true)) {
    LogWarn("{}: {}; it is computed again, as others that will be found (only the first is told)",
            name(), problem);
  }
}

// The blocks at the front that are there, as many as are copied at a time.
KvStore::Handed KvStore::HandOver(ReadId id) {
  std::vector<int32_t> frames;
  std::vector<KvBlockCopies::FromMemory> copies;
  {
    const MutexLock lock(mutex_);
    PendingRead* const read = FindRead(id);
    if (read == nullptr || read->progress.ended) return Handed::kBlocks;
    while (!read->held.empty() && frames.size() < copies_.batch()) {
      const int32_t frame = read->held.front();
      if (ContentOf(frame).state != Content::State::kWhole) break;
      read->held.pop_front();
      copies.push_back(
          {Frame(frame), PlaceOf(*read, static_cast<size_t>(read->progress.done) + frames.size())});
      frames.push_back(frame);
    }
    if (frames.empty()) {
      const bool comes = read->held.empty()
                             ? !read->chain.broken
                             : ContentOf(read->held.front()).state == Content::State::kComes;
      if (comes) return Handed::kNothing;
      EndRead(*read);
      return Handed::kEnd;
    }
    handing_over_ = id;
  }
  copies_.Copy(copies);
  const MutexLock lock(mutex_);
  handing_over_ = 0;
  PendingRead& read = *FindRead(id);
  for (const int32_t frame : frames) {
    CountDone(read, frames_.slot(frame), std::exchange(ContentOf(frame).read, false));
    LetGo(frame);
  }
  return EndIfAllAreDone(read);
}

// Likewise those that are in no frame, from the system's cache of files. kNothing: the first one is
// not there, or damaged; a read that waits for the disk finds out.
KvStore::Handed KvStore::HandOverCached(ReadId id) {
  std::vector<KvBlockCopies::FromFile> copies;
  std::vector<int32_t> slots;  // of these; held
  {
    const MutexLock lock(mutex_);
    PendingRead* const read = FindRead(id);
    if (read == nullptr || read->progress.ended) return Handed::kBlocks;
    if (!read_cached_ || read->state_slot >= 0 || !read->held.empty()) return Handed::kNothing;
    Chain& chain = read->chain;
    PrefixId last = chain.last;
    for (size_t block = chain.planned; block < chain.wanted && copies.size() < copies_.batch();
         ++block) {
      const auto match = index_->Lookup(last, TokensOf(chain, block));
      if (!match) break;
      if (At(match->block).frame != KvFrames::kNone) {
        index_->Release(match->block);
        break;
      }
      copies.push_back({static_cast<uint64_t>(match->block) * stride_, match->prefix,
                        At(match->block).entry.checksum, PlaceOf(*read, block).blocks});
      slots.push_back(match->block);
      last = match->prefix;
    }
    if (copies.empty()) return Handed::kNothing;
    handing_over_ = id;
  }
  const size_t there = copies_.CopyCached(file_->blocks(), copies, read_cached_);
  const MutexLock lock(mutex_);
  handing_over_ = 0;
  PendingRead& read = *FindRead(id);
  for (size_t i = 0; i < copies.size(); ++i) {
    if (i < there) {
      counters_.bytes_read += shape_.block_bytes;
      read.chain.last = copies[i].id;
      ++read.chain.planned;
      CountDone(read, slots[i], true);
    }
    index_->Release(slots[i]);
  }
  // What is cached needs not be read ahead.
  if (read.chain.planned == read.chain.wanted) read.chain.tokens.clear();
  if (there == 0) {
    done_.NotifyAll();
    return read.progress.ended ? Handed::kBlocks : Handed::kNothing;
  }
  return EndIfAllAreDone(read);
}

KvStore::Place KvStore::PlaceOf(const PendingRead& read, size_t block) const {
  if (read.state_slot >= 0) {
    return {.blocks = {}, .state_slot = read.state_slot, .part = static_cast<int64_t>(block)};
  }
  const auto first = read.blocks.begin() + static_cast<std::ptrdiff_t>(block * groups_);
  return {.blocks = {first, first + static_cast<std::ptrdiff_t>(groups_)}};
}

void KvStore::CountDone(PendingRead& read, int32_t slot, bool was_read) {
  ++(was_read ? counters_.from_disk : counters_.from_memory);
  ++read.progress.done;
  if (!was_read) ++read.progress.from_memory;
  Use(slot);
}

KvStore::Handed KvStore::EndIfAllAreDone(PendingRead& read) {
  done_.NotifyAll();
  if (read.progress.ended) return Handed::kBlocks;  // it was stopped
  if (static_cast<size_t>(read.progress.done) < read.chain.wanted) return Handed::kBlocks;
  EndRead(read);
  return Handed::kEnd;
}

}  // namespace moesaic
