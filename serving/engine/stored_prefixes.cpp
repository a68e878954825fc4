#include "serving/engine/stored_prefixes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/check.h"
#include "serving/engine/sequence.h"

namespace moesaic {
namespace {

// Tokens beyond a read that the disk is told of, so that it is at work while the next one is asked
// for.
constexpr int64_t kAheadBlocks = 64;

std::span<const int32_t> TokensOf(const Sequence& sequence, int64_t first, int64_t count,
                                  int64_t block_tokens) {
  return std::span(sequence.tokens)
      .subspan(static_cast<size_t>(first * block_tokens),
               static_cast<size_t>(count * block_tokens));
}

}  // namespace

StoredPrefixes::StoredPrefixes(const KvStoreOptions& options, const KvManager& kv,
                               std::function<void()> progress)
    : kv_(kv), block_tokens_(options.block_tokens), store_(options, std::move(progress)) {}

int64_t StoredPrefixes::Begin(Sequence& sequence, int64_t most) {
  sequence.stored.chain = std::make_shared<StoredChain>();
  StoredChain& chain = *sequence.stored.chain;
  chain.ids = store_.Find(TokensOf(sequence, 0, most, block_tokens_));
  const auto stored = std::ssize(chain.ids);
  chain.offered = stored;
  // What the pool has kept longer than the store.
  for (int64_t block = stored; block < sequence.blocks.sealed; ++block) Sealed(sequence, block);
  if (states_ == nullptr) return stored;
  int64_t usable = stored;
  while (usable > 0 && !store_.FindState(chain.ids[static_cast<size_t>(usable) - 1])) --usable;
  return usable;
}

void StoredPrefixes::Read(Sequence& sequence, int64_t first, int64_t count, int64_t until) {
  std::vector<int32_t> blocks;
  for (int64_t block = first; block < first + count; ++block) {
    for (const SequenceBlocks::Table& table : sequence.blocks.tables) {
      blocks.push_back(table.blocks[static_cast<size_t>(block)]);
    }
  }
  const StoredChain& chain = *sequence.stored.chain;
  const PrefixId parent = first == 0 ? kEmptyPrefix : chain.ids[static_cast<size_t>(first) - 1];
  const int64_t ahead = std::min(kAheadBlocks, until - first - count);
  CHECK_EQ(sequence.stored.read, 0u);
  sequence.stored.read =
      store_.Read(parent, TokensOf(sequence, first, count, block_tokens_), blocks,
                  TokensOf(sequence, first + count, ahead, block_tokens_));
}

void StoredPrefixes::ReadState(Sequence& sequence, int64_t blocks, int32_t slot) {
  CHECK_EQ(sequence.stored.read, 0u);
  sequence.stored.reads_state = true;
  sequence.stored.read =
      store_.ReadState(sequence.stored.chain->ids[static_cast<size_t>(blocks) - 1], slot);
}

PrefixStore::Progress StoredPrefixes::Poll(const Sequence& sequence) const {
  const KvStore::Progress progress = store_.Poll(sequence.stored.read);
  if (!sequence.stored.reads_state) return {progress.done, progress.from_memory, progress.ended};
  return {progress.done == store_.state_parts() ? 1 : 0, 0, progress.ended};
}

void StoredPrefixes::Stop(Sequence& sequence) {
  if (sequence.stored.read != 0) store_.Stop(std::exchange(sequence.stored.read, 0));
  sequence.stored.reads_state = false;
}

// Each block of the pool waits once at most, if it can be written at all.
bool StoredPrefixes::IsFull() const { return std::ssize(waiting_) >= kv_.pool().num_blocks(); }

void StoredPrefixes::Sealed(Sequence& sequence, int64_t block) {
  if (sequence.stored.chain == nullptr) return;
  StoredChain& chain = *sequence.stored.chain;
  if (block < chain.offered || chain.broken || !store_.writable()) return;
  CHECK_EQ(block, chain.offered);
  Waiting waiting;
  for (size_t g = 0; g < sequence.blocks.tables.size(); ++g) {
    const int32_t number = sequence.blocks.tables[g].blocks[static_cast<size_t>(block)];
    const PrefixId held =
        number == SequenceBlocks::kGivenBack ? kEmptyPrefix : kv_.pool().prefix(number);
    // Not sealed: another block in the pool holds the same, and was offered.
    if (number == SequenceBlocks::kGivenBack) chain.broken = true;
    waiting.blocks.push_back(number);
    waiting.in_pool.push_back(held);
  }
  if (IsFull()) chain.broken = true;
  if (chain.broken) return;
  ++chain.offered;
  const std::span<const int32_t> tokens = TokensOf(sequence, block, 1, block_tokens_);
  waiting.tokens.assign(tokens.begin(), tokens.end());
  waiting.chain = sequence.stored.chain;
  waiting_.push_back(std::move(waiting));
}

// Those of an answer follow each other block by block, so that only the last one is worth writing.
void StoredPrefixes::StateKept(Sequence& sequence, int64_t blocks, PrefixId prefix, bool rolling) {
  if (sequence.stored.chain == nullptr) return;
  if (rolling) {
    sequence.stored.rolling_blocks = blocks;
    sequence.stored.rolling = prefix;
  } else {
    OfferState(sequence.stored.chain, blocks, prefix);
  }
}

void StoredPrefixes::OfferState(std::shared_ptr<StoredChain> chain, int64_t blocks,
                                PrefixId prefix) {
  if (!store_.writable() || IsFull()) return;
  waiting_.push_back({.chain = std::move(chain), .state_blocks = blocks, .state = prefix});
}

// The start of a sequence is worth most, so all of it is used once more, the start last: else the
// store would give up what was written first.
void StoredPrefixes::End(Sequence& sequence) {
  Stop(sequence);
  StoredPart& stored = sequence.stored;
  if (stored.chain != nullptr && stored.rolling != kEmptyPrefix) {
    OfferState(stored.chain, stored.rolling_blocks, stored.rolling);
  }
  if (stored.chain != nullptr && stored.chain->offered > 0) {
    const std::span<const int32_t> tokens =
        TokensOf(sequence, 0, stored.chain->offered, block_tokens_);
    waiting_.push_back(
        {.chain = std::move(stored.chain), .tokens = {tokens.begin(), tokens.end()}});
  }
  stored = {};
}

bool StoredPrefixes::StillHeld(const Waiting& waiting) const {
  for (size_t g = 0; g < waiting.blocks.size(); ++g) {
    if (waiting.in_pool[g] == kEmptyPrefix ||
        kv_.pool().prefix(waiting.blocks[g]) != waiting.in_pool[g]) {
      return false;
    }
  }
  return true;
}

// False: the store takes nothing now.
bool StoredPrefixes::PumpOne() {
  Waiting& next = waiting_.front();
  const bool is_state = next.state != kEmptyPrefix;
  if (is_state && !PumpState(next)) return false;
  if (!is_state && !next.blocks.empty() && !PumpBlock(next)) return false;
  if (!is_state && next.blocks.empty()) {
    // The last of its states first: blocks are found without a state, not the other way round.
    const std::vector<PrefixId>& ids = next.chain->ids;
    for (auto id = ids.rbegin(); states_ != nullptr && id != ids.rend(); ++id) {
      if (store_.FindState(*id)) break;
    }
    store_.Find(next.tokens);
  }
  waiting_.pop_front();
  return true;
}

// Likewise, in these two. What cannot be kept at all is done with.
bool StoredPrefixes::PumpBlock(const Waiting& next) {
  StoredChain& chain = *next.chain;
  if (chain.broken) return true;
  if (const auto there = store_.FindBlock(chain.last(), next.tokens)) {
    chain.ids.push_back(*there);
    return true;
  }
  chain.broken = !StillHeld(next) || store_.takes_none();
  if (chain.broken) return true;
  if (!store_.CanTake()) return false;
  const PrefixId id = store_.Write(chain.last(), next.tokens, next.blocks);
  chain.broken = id == kEmptyPrefix;
  if (!chain.broken) chain.ids.push_back(id);
  return true;
}

bool StoredPrefixes::PumpState(Waiting& next) {
  if (next.part == 0) {
    if (std::ssize(next.chain->ids) < next.state_blocks) return true;  // its prefix is not there
    next.part_behind = next.chain->ids[static_cast<size_t>(next.state_blocks) - 1];
  }
  for (; next.part < store_.state_parts(); ++next.part) {
    if (const auto there = store_.FindStatePart(next.part_behind, next.part)) {
      next.part_behind = *there;
      continue;
    }
    const int32_t slot = states_->SlotOf(next.state);
    if (slot < 0 || store_.takes_none()) return true;
    if (!store_.CanTake()) return false;
    next.part_behind = store_.WriteStatePart(next.part_behind, next.part, slot);
    if (next.part_behind == kEmptyPrefix) return true;
  }
  return true;
}

void StoredPrefixes::Pump() {
  while (!waiting_.empty() && PumpOne()) {
  }
}

void StoredPrefixes::Close(std::chrono::milliseconds at_most) {
  const KvStore::Clock::time_point until = KvStore::Clock::now() + at_most;
  while (!waiting_.empty()) {
    if (!PumpOne() && !store_.WaitToTake(until)) break;
  }
  waiting_.clear();
  store_.Close();
}

}  // namespace moesaic
