#include "cache/kv_manager.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

KvManager::KvManager(KvNeeds needs, int64_t num_blocks, int64_t most_blocks)
    : needs_(std::move(needs)), pool_(num_blocks, needs_.block_tokens, most_blocks) {
  CHECK(!needs_.windows.empty());
  CHECK_EQ(needs_.chunk_tokens % needs_.block_tokens, 0);
  const auto all = std::find(needs_.windows.begin(), needs_.windows.end(), 0);
  if (all != needs_.windows.end()) leading_ = static_cast<size_t>(all - needs_.windows.begin());
}

double KvManager::usage() const {
  const int64_t blocks = std::max(pool_.num_blocks(), pool_.open_end());
  return static_cast<double>(pool_.used_blocks()) / static_cast<double>(blocks);
}

bool KvManager::Grow(SequenceBlocks& sequence, int64_t tokens) {
  Open(sequence);
  const auto wanted = static_cast<size_t>(needs_.BlocksFor(tokens));
  for (SequenceBlocks::Table& table : sequence.tables) {
    while (table.blocks.size() < wanted) {
      const std::optional<int32_t> block = pool_.Allocate();
      if (!block) return false;
      table.blocks.push_back(*block);
    }
  }
  return true;
}

int64_t KvManager::Missing(const SequenceBlocks& sequence, int64_t tokens,
                           int64_t step_tokens) const {
  int64_t missing = 0;
  for (size_t g = 0; g < groups(); ++g) {
    int64_t held = 0;
    if (!sequence.tables.empty()) {
      held = std::ssize(sequence.tables[g].blocks) - sequence.tables[g].kept_from;
    }
    missing += std::max<int64_t>(0, needs_.MostOf(g, tokens, step_tokens) - held);
  }
  return missing;
}

void KvManager::GiveBackBehind(SequenceBlocks& sequence, int64_t computed) {
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    SequenceBlocks::Table& table = sequence.tables[g];
    const int64_t end = std::min(needs_.KeptFrom(g, computed), std::ssize(table.blocks));
    // The last one first: the start of a prompt is worth most.
    for (int64_t i = end - 1; i >= table.kept_from; --i) {
      pool_.Release(table.blocks[static_cast<size_t>(i)]);
      table.blocks[static_cast<size_t>(i)] = SequenceBlocks::kGivenBack;
    }
    table.kept_from = std::max(table.kept_from, end);
  }
}

void KvManager::Release(SequenceBlocks& sequence) {
  int64_t longest = 0;
  for (const SequenceBlocks::Table& table : sequence.tables) {
    longest = std::max(longest, std::ssize(table.blocks));
  }
  for (int64_t i = longest - 1; i >= 0; --i) {
    for (const SequenceBlocks::Table& table : sequence.tables) {
      if (i < table.kept_from || i >= std::ssize(table.blocks)) continue;
      pool_.Release(table.blocks[static_cast<size_t>(i)]);
    }
  }
  sequence = {};
}

std::span<const int32_t> KvManager::TokensOf(std::span<const int32_t> tokens, int64_t block) const {
  return tokens.subspan(static_cast<size_t>(block * needs_.block_tokens),
                        static_cast<size_t>(needs_.block_tokens));
}

std::vector<KvManager::Prefix> KvManager::FindPrefixes(std::span<const int32_t> tokens) const {
  std::vector<Prefix> prefixes;
  std::vector<int64_t> first(groups(), 0);  // of the blocks that are there up to the last one
  PrefixId parent = kEmptyPrefix;
  const int64_t whole = std::ssize(tokens) / needs_.block_tokens;
  for (int64_t block = 0; block < whole; ++block) {
    const std::span<const int32_t> held = TokensOf(tokens, block);
    const auto leads = pool_.Peek(parent, held, leading_);
    if (!leads) break;
    parent = leads->prefix;
    bool reusable = true;
    for (size_t g = 0; g < groups(); ++g) {
      if (g != leading_ && !pool_.Peek(parent, held, g)) first[g] = block + 1;
      const int64_t needed = needs_.KeptFrom(g, (block + 1) * needs_.block_tokens);
      reusable = reusable && first[g] <= needed;
    }
    if (reusable) prefixes.push_back({block + 1, parent});
  }
  return prefixes;
}

void KvManager::Reuse(SequenceBlocks& sequence, std::span<const int32_t> tokens) {
  CHECK(sequence.empty());
  Open(sequence);
  const int64_t count = std::ssize(tokens) / needs_.block_tokens;
  for (size_t g = 0; g < groups(); ++g) {
    SequenceBlocks::Table& table = sequence.tables[g];
    table.kept_from = std::min(count, needs_.KeptFrom(g, count * needs_.block_tokens));
    table.blocks.assign(static_cast<size_t>(count), SequenceBlocks::kGivenBack);
  }
  for (int64_t block = 0; block < count; ++block) {
    const std::span<const int32_t> held = TokensOf(tokens, block);
    const PrefixId parent = sequence.prefix;
    const auto leads = pool_.Peek(parent, held, leading_);
    CHECK(leads.has_value());
    sequence.prefix = leads->prefix;
    for (size_t g = 0; g < groups(); ++g) {
      SequenceBlocks::Table& table = sequence.tables[g];
      if (block < table.kept_from) continue;
      const auto match = pool_.Lookup(g == leading_ ? parent : sequence.prefix, held, g);
      CHECK(match.has_value());
      table.blocks[static_cast<size_t>(block)] = match->block;
    }
  }
  sequence.sealed = count;
}

void KvManager::Seal(SequenceBlocks& sequence, std::span<const int32_t> tokens) {
  const auto block = static_cast<size_t>(sequence.sealed);
  sequence.prefix =
      pool_.Seal(sequence.tables[leading_].blocks[block], sequence.prefix, tokens, leading_);
  for (size_t g = 0; g < groups(); ++g) {
    if (g != leading_) pool_.Seal(sequence.tables[g].blocks[block], sequence.prefix, tokens, g);
  }
  ++sequence.sealed;
}

}  // namespace moesaic
