// KvPools: the blocks of keys and values of sequences, in groups of layers that share a layout and
// a window. Each group has blocks, and memory, of its own; a sequence has a table of blocks in
// each.
//
// In a group with a window the blocks that no later token attends to are given back while the
// sequence runs, so that its use is bounded, whatever its length. They stay findable by what they
// hold until they are taken for something else (kv_block_pool.h).
//
// Bookkeeping only; thread contract: none of its own, the engine's thread owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_block_pool.h"

namespace moesaic {

// Blocks of one group.
struct KvGroupSize {
  int64_t num_blocks = 0;
  int64_t window = 0;  // tokens; 0: all of the context is attended to
};

// What a sequence has of the blocks. Its first tokens are in block 0 of each table, and so on.
struct SequenceBlocks {
  static constexpr int32_t kGivenBack = -1;

  struct Table {
    std::vector<int32_t> blocks;     // kGivenBack: behind the window
    int64_t kept_from = 0;           // blocks before it are given back
    PrefixId prefix = kEmptyPrefix;  // of the sealed ones
  };
  std::vector<Table> tables;  // [groups]
  int64_t sealed = 0;         // the first so many blocks are findable

  bool empty() const { return tables.empty() || tables.front().blocks.empty(); }
  int64_t covered() const { return tables.empty() ? 0 : std::ssize(tables.front().blocks); }
};

class KvPools {
 public:
  // Tokens are attended to in chunks of so many (a multiple of block_tokens): a chunk stays as a
  // whole while the window reaches into it.
  KvPools(std::span<const KvGroupSize> groups, int64_t block_tokens, int64_t chunk_tokens);

  size_t groups() const { return groups_.size(); }
  const KvBlockPool& pool(size_t group) const { return groups_[group].pool; }
  double usage() const;  // of the fullest group: used of all blocks

  // Blocks for tokens [0, tokens). False when one is missing: what it has got it keeps.
  bool Grow(SequenceBlocks& sequence, int64_t tokens);
  // Whether there is room for the sequence to become so many tokens long, at most `step_tokens` at
  // a time, if nobody else takes any.
  bool HasRoom(const SequenceBlocks& sequence, int64_t tokens, int64_t step_tokens) const;
  // Likewise for one that runs alone.
  bool Fits(int64_t tokens, int64_t step_tokens) const;
  // Gives back what no token from `computed` on attends to.
  void GiveBackBehind(SequenceBlocks& sequence, int64_t computed);
  // Gives back everything, the last blocks first.
  void Release(SequenceBlocks& sequence);

  // The next block of a sequence without others than sealed ones: finds and takes the one that
  // holds `tokens` (block_tokens of them), if every group has it.
  bool Reuse(SequenceBlocks& sequence, std::span<const int32_t> tokens);
  // Makes the next block findable, which is full of these tokens.
  void Seal(SequenceBlocks& sequence, std::span<const int32_t> tokens);

 private:
  struct Group {
    KvBlockPool pool;
    int64_t window;
  };

  void Open(SequenceBlocks& sequence) const;
  // That a sequence of so many tokens has at once.
  int64_t MostBlocks(const Group& group, int64_t tokens, int64_t step_tokens) const;
  int64_t KeptFrom(const Group& group, int64_t computed) const;
  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }

  const int64_t block_tokens_;
  const int64_t chunk_tokens_;
  std::vector<Group> groups_;
};

}  // namespace moesaic
