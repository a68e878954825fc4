// KvManager: the blocks of keys and values that sequences have, in groups of layers that share a
// layout and a window (core/config/kv_groups.h). A sequence has a table of blocks in each group;
// the blocks of all groups are of one pool, which is what sizes the groups: each has what its
// sequences need at the time.
//
// In a group with a window the blocks that no later token attends to are given back while the
// sequence runs, so that its use is bounded, whatever its length. They stay findable by what they
// hold until they are taken for something else (kv_block_pool.h).
//
// A prefix is found by one group, the leading one: without a window, if there is one. Its blocks
// have the numbers of prefixes that lead to the blocks of the other groups. A group with a window
// need not have all of them: only those that tokens behind the prefix attend to.
//
// Bookkeeping only; thread contract: none of its own, the engine's thread owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_block_pool.h"
#include "cache/kv_needs.h"

namespace moesaic {

// What a sequence has of the blocks. Its first tokens are in block 0 of each table, and so on.
struct SequenceBlocks {
  static constexpr int32_t kGivenBack = -1;

  struct Table {
    std::vector<int32_t> blocks;  // kGivenBack: behind the window
    int64_t kept_from = 0;        // blocks before it are given back
  };
  std::vector<Table> tables;       // [groups]
  int64_t sealed = 0;              // the first so many blocks are findable
  PrefixId prefix = kEmptyPrefix;  // of the sealed ones

  bool empty() const { return tables.empty() || tables.front().blocks.empty(); }
  int64_t covered() const { return tables.empty() ? 0 : std::ssize(tables.front().blocks); }
};

class KvManager {
 public:
  // A prefix that can be reused.
  struct Prefix {
    int64_t blocks = 0;  // of each group
    PrefixId id = kEmptyPrefix;
  };

  // Blocks of all groups together; most_blocks: see KvBlockPool.
  KvManager(KvNeeds needs, int64_t num_blocks, int64_t most_blocks = 0);

  size_t groups() const { return needs_.windows.size(); }
  const KvNeeds& needs() const { return needs_; }
  const KvBlockPool& pool() const { return pool_; }
  double usage() const;  // used of all blocks
  void SetBlocks(int64_t num_blocks) { pool_.SetBlocks(num_blocks); }

  // Blocks for tokens [0, tokens). False when one is missing: what it has got it keeps.
  bool Grow(SequenceBlocks& sequence, int64_t tokens);
  // Blocks that the sequence lacks to become so many tokens long, at most `step_tokens` at a time.
  int64_t Missing(const SequenceBlocks& sequence, int64_t tokens, int64_t step_tokens) const;
  // Whether they are there, if nobody else takes any.
  bool HasRoom(const SequenceBlocks& sequence, int64_t tokens, int64_t step_tokens) const {
    return Missing(sequence, tokens, step_tokens) <= pool_.free_blocks();
  }
  // Whether they would be there for one that runs alone.
  bool Fits(int64_t tokens, int64_t step_tokens) const {
    return needs_.Most(tokens, step_tokens) <= pool_.num_blocks();
  }
  // Gives back what no token from `computed` on attends to.
  void GiveBackBehind(SequenceBlocks& sequence, int64_t computed);
  // Gives back everything, the last blocks first.
  void Release(SequenceBlocks& sequence);

  // What can be reused of the start of these tokens, the shortest first: not every length can be
  // where there are windows.
  std::vector<Prefix> FindPrefixes(std::span<const int32_t> tokens) const;
  // Takes these tokens' blocks, whole ones, for a sequence that has none; FindPrefixes has a prefix
  // of their length. What is behind a window is given back already.
  void Reuse(SequenceBlocks& sequence, std::span<const int32_t> tokens);
  // Makes the next block findable, which is full of these tokens.
  void Seal(SequenceBlocks& sequence, std::span<const int32_t> tokens);

 private:
  void Open(SequenceBlocks& sequence) const { sequence.tables.resize(groups()); }
  std::span<const int32_t> TokensOf(std::span<const int32_t> tokens, int64_t block) const;

  const KvNeeds needs_;
  size_t leading_ = 0;
  KvBlockPool pool_;
};

}  // namespace moesaic
