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
  const std::vector<PrefixId> ids = store_.Find(TokensOf(sequence, 0, most, block_tokens_));
  const auto stored = std::ssize(ids);
  sequence.stored.chain = std::make_shared<StoredChain>();
  StoredChain& chain = *sequence.stored.chain;
  chain.offered = stored;
  chain.last = ids.empty() ? kEmptyPrefix : ids.back();
  sequence.stored.ids = ids;
  // What the pool has kept longer than the store.
  for (int64_t block = stored; block < sequence.blocks.sealed; ++block) Sealed(sequence, block);
  return stored;
}

void StoredPrefixes::Read(Sequence& sequence, int64_t first, int64_t count, int64_t until) {
  std::vector<int32_t> blocks;
  for (int64_t block = first; block < first + count; ++block) {
    for (const SequenceBlocks::Table& table : sequence.blocks.tables) {
      blocks.push_back(table.blocks[static_cast<size_t>(block)]);
    }
  }
  const PrefixId parent =
      first == 0 ? kEmptyPrefix : sequence.stored.ids[static_cast<size_t>(first) - 1];
  const int64_t ahead = std::min(kAheadBlocks, until - first - count);
  CHECK_EQ(sequence.stored.read, 0u);
  sequence.stored.read =
      store_.Read(parent, TokensOf(sequence, first, count, block_tokens_), blocks,
                  TokensOf(sequence, first + count, ahead, block_tokens_));
}

PrefixStore::Progress StoredPrefixes::Poll(const Sequence& sequence) const {
  const KvStore::Progress progress = store_.Poll(sequence.stored.read);
  return {progress.done, progress.ended};
}

void StoredPrefixes::Stop(Sequence& sequence) {
  if (sequence.stored.read != 0) store_.Stop(std::exchange(sequence.stored.read, 0));
}

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
  // Each block of the pool waits once at most, if it can be written at all.
  if (std::ssize(waiting_) >= kv_.pool().num_blocks()) chain.broken = true;
  if (chain.broken) return;
  ++chain.offered;
  const std::span<const int32_t> tokens = TokensOf(sequence, block, 1, block_tokens_);
  waiting.tokens.assign(tokens.begin(), tokens.end());
  waiting.chain = sequence.stored.chain;
  waiting_.push_back(std::move(waiting));
}

// The start of a sequence is worth most, so all of it is used once more, the start last: else the
// store would give up what was written first.
void StoredPrefixes::End(Sequence& sequence) {
  Stop(sequence);
  if (sequence.stored.chain != nullptr && sequence.stored.chain->offered > 0) {
    const std::span<const int32_t> tokens =
        TokensOf(sequence, 0, sequence.stored.chain->offered, block_tokens_);
    waiting_.push_back(
        {.chain = std::move(sequence.stored.chain), .tokens = {tokens.begin(), tokens.end()}});
  }
  sequence.stored = {};
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
  StoredChain& chain = *next.chain;
  if (next.blocks.empty()) {
    store_.Find(next.tokens);
  } else if (!chain.broken) {
    if (const auto there = store_.FindBlock(chain.last, next.tokens)) {
      chain.last = *there;
    } else if (!StillHeld(next) || store_.takes_none()) {
      chain.broken = true;
    } else if (!store_.CanTake()) {
      return false;
    } else {
      const PrefixId id = store_.Write(chain.last, next.tokens, next.blocks);
      if (id == kEmptyPrefix) chain.broken = true;
      chain.last = id;
    }
  }
  waiting_.pop_front();
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
