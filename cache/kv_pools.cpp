#include "cache/kv_pools.h"

#include <algorithm>
#include <optional>

#include "core/base/check.h"

namespace moesaic {

KvPools::KvPools(std::span<const KvGroupSize> groups, int64_t block_tokens, int64_t chunk_tokens)
    : block_tokens_(block_tokens), chunk_tokens_(chunk_tokens) {
  CHECK(!groups.empty());
  CHECK_EQ(chunk_tokens % block_tokens, 0);
  for (const KvGroupSize& group : groups) {
    groups_.push_back({KvBlockPool(group.num_blocks, block_tokens), group.window});
  }
}

double KvPools::usage() const {
  double most = 0;
  for (const Group& group : groups_) {
    most = std::max(most, static_cast<double>(group.pool.used_blocks()) /
                              static_cast<double>(group.pool.num_blocks()));
  }
  return most;
}

void KvPools::Open(SequenceBlocks& sequence) const { sequence.tables.resize(groups_.size()); }

bool KvPools::Grow(SequenceBlocks& sequence, int64_t tokens) {
  Open(sequence);
  const auto wanted = static_cast<size_t>(BlocksFor(tokens));
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t>& blocks = sequence.tables[g].blocks;
    while (blocks.size() < wanted) {
      const std::optional<int32_t> block = groups_[g].pool.Allocate();
      if (!block) return false;
      blocks.push_back(*block);
    }
  }
  return true;
}

// Blocks before it are of chunks that no token from `computed` on attends to.
int64_t KvPools::KeptFrom(const Group& group, int64_t computed) const {
  if (group.window == 0) return 0;
  const int64_t first = std::max<int64_t>(0, computed + 1 - group.window);
  return first / chunk_tokens_ * (chunk_tokens_ / block_tokens_);
}

int64_t KvPools::MostBlocks(const Group& group, int64_t tokens, int64_t step_tokens) const {
  if (group.window == 0) return BlocksFor(tokens);
  // Before a step the chunk that the window begins in is there as a whole.
  return BlocksFor(std::min(tokens, group.window + chunk_tokens_ + step_tokens));
}

bool KvPools::HasRoom(const SequenceBlocks& sequence, int64_t tokens, int64_t step_tokens) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    int64_t held = 0;
    if (!sequence.tables.empty()) {
      held = std::ssize(sequence.tables[g].blocks) - sequence.tables[g].kept_from;
    }
    const int64_t most = MostBlocks(groups_[g], tokens, step_tokens);
    if (most - held > groups_[g].pool.free_blocks()) return false;
  }
  return true;
}

bool KvPools::Fits(int64_t tokens, int64_t step_tokens) const {
  return std::all_of(groups_.begin(), groups_.end(), [&](const Group& group) {
    return MostBlocks(group, tokens, step_tokens) <= group.pool.num_blocks();
  });
}

void KvPools::GiveBackBehind(SequenceBlocks& sequence, int64_t computed) {
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    SequenceBlocks::Table& table = sequence.tables[g];
    const int64_t end = std::min(KeptFrom(groups_[g], computed), std::ssize(table.blocks));
    // The last one first: the start of a prompt is worth most.
    for (int64_t i = end - 1; i >= table.kept_from; --i) {
      groups_[g].pool.Release(table.blocks[static_cast<size_t>(i)]);
      table.blocks[static_cast<size_t>(i)] = SequenceBlocks::kGivenBack;
    }
    table.kept_from = std::max(table.kept_from, end);
  }
}

void KvPools::Release(SequenceBlocks& sequence) {
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const SequenceBlocks::Table& table = sequence.tables[g];
    for (auto block = table.blocks.rbegin(); block != table.blocks.rend(); ++block) {
      if (*block != SequenceBlocks::kGivenBack) groups_[g].pool.Release(*block);
    }
  }
  sequence = {};
}

bool KvPools::Reuse(SequenceBlocks& sequence, std::span<const int32_t> tokens) {
  Open(sequence);
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = sequence.tables[g];
    CHECK_EQ(std::ssize(table.blocks), sequence.sealed);
    const std::optional<KvBlockPool::Match> match = groups_[g].pool.Lookup(table.prefix, tokens);
    if (!match) {
      for (size_t earlier = 0; earlier < g; ++earlier) {  // all or none
        SequenceBlocks::Table& taken = sequence.tables[earlier];
        groups_[earlier].pool.Release(taken.blocks.back());
        taken.blocks.pop_back();
      }
      return false;
    }
    table.blocks.push_back(match->block);
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = sequence.tables[g];
    table.prefix = groups_[g].pool.prefix(table.blocks.back());
  }
  ++sequence.sealed;
  return true;
}

void KvPools::Seal(SequenceBlocks& sequence, std::span<const int32_t> tokens) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    SequenceBlocks::Table& table = sequence.tables[g];
    table.prefix = groups_[g].pool.Seal(table.blocks[static_cast<size_t>(sequence.sealed)],
                                        table.prefix, tokens);
  }
  ++sequence.sealed;
}

}  // namespace moesaic
