// KvBlockPool: which blocks of the paged KV memory are free, shared or hold a prefix that a later
// request can reuse. Bookkeeping only: a plain state machine over block numbers.
//
// Thread contract: none of its own; the engine's thread owns it. No allocation after construction.
//
// A block is free (no references), or held by one or more sequences. A full block can be *sealed*:
// it is then found by what it holds, the tokens of the block after the prefix that leads to it, of
// the group of layers that it was sealed for (kv_manager.h; there may be one only). A sealed block
// that nobody references stays findable until it is needed for something else; blocks that hold
// nothing are taken first, then the sealed ones in the order in which they were released.
//
// A prefix that lost a block in its middle is found up to there; what follows is unreachable and
// ages out.
//
// The number of blocks may change: those behind it are closed. What is free of them is neither
// handed out nor found any more, what is held closes when it is released.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moesaic {

// Identifies a sealed block together with everything before it. A number is never used twice, so
// equal ids mean equal tokens: no look-up trusts a hash alone.
using PrefixId = uint64_t;
constexpr PrefixId kEmptyPrefix = 0;

class KvBlockPool {
 public:
  struct Match {
    int32_t block = 0;
    PrefixId prefix = kEmptyPrefix;
  };
  // Monotone.
  struct Counters {
    uint64_t lookups = 0;
    uint64_t hits = 0;       // look-ups that found their block
    uint64_t revived = 0;    // of these, the block had been free
    uint64_t displaced = 0;  // sealed blocks that were taken for something else
  };

  // most_blocks: as many as SetBlocks may make of them; 0: their number stays.
  KvBlockPool(int64_t num_blocks, int64_t block_tokens, int64_t most_blocks = 0);

  int64_t num_blocks() const { return num_blocks_; }
  int64_t most_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t free_blocks() const { return free_count_; }  // sealed ones included
  int64_t used_blocks() const { return most_blocks() - free_count_ - closed_count_; }
  // Blocks from this number on are closed, all of them.
  int64_t open_end() const { return open_end_; }
  void SetBlocks(int64_t num_blocks);
  int64_t sealed_blocks() const { return sealed_count_; }
  int64_t cached_blocks() const { return cached_count_; }  // free and sealed
  int32_t references(int32_t block) const { return At(block).references; }
  PrefixId prefix(int32_t block) const { return At(block).prefix; }  // kEmptyPrefix unless sealed
  // Of a sealed block.
  std::span<const int32_t> tokens(int32_t block) const {
    return const_cast<KvBlockPool*>(this)->Tokens(block);
  }
  const Counters& counters() const { return counters_; }

  // A block with one reference; nullopt when none is free.
  std::optional<int32_t> Allocate();
  // Blocks of one sequence are best released last one first: the start of a prompt is worth most.
  void Release(int32_t block);

  // The sealed block that holds `tokens` (block_tokens of them) after `parent`, of the group;
  // retained for the caller.
  std::optional<Match> Lookup(PrefixId parent, std::span<const int32_t> tokens, size_t group = 0);
  // Likewise, but nothing is retained and no use is counted.
  std::optional<Match> Peek(PrefixId parent, std::span<const int32_t> tokens,
                            size_t group = 0) const;
  // Makes a held, full block findable. Returns the id of the prefix up to and with this block; when
  // another block of the group holds the same, that one stays the findable one and its id is
  // returned.
  PrefixId Seal(int32_t block, PrefixId parent, std::span<const int32_t> tokens, size_t group = 0);

  // For a pool whose blocks outlive it (kv_store.h). Seals a free block that is not sealed, under
  // the number that it had, behind all other free ones. False: another block holds the same. Later
  // numbers are higher.
  bool Adopt(int32_t block, PrefixId prefix, PrefixId parent, std::span<const int32_t> tokens);
  // Numbers from now on are higher than this one.
  void SkipTo(PrefixId prefix) { last_prefix_ = std::max(last_prefix_, prefix); }
  // A held block no longer holds what it was sealed with.
  void Forget(int32_t block);

 private:
  static constexpr int32_t kNone = -1;

  struct Block {
    int32_t references = 0;
    int32_t previous_free = kNone;
    int32_t next_free = kNone;
    PrefixId prefix = kEmptyPrefix;  // set while sealed
    PrefixId parent = kEmptyPrefix;
    size_t group = 0;
    bool closed = false;
  };

  Block& At(int32_t block);
  const Block& At(int32_t block) const { return const_cast<KvBlockPool*>(this)->At(block); }
  std::span<int32_t> Tokens(int32_t block);
  size_t HomeBucket(PrefixId parent, std::span<const int32_t> tokens, size_t group) const;
  int32_t Find(PrefixId parent, std::span<const int32_t> tokens, size_t group) const;
  void SealAs(int32_t block, PrefixId prefix, PrefixId parent, std::span<const int32_t> tokens,
              size_t group);
  void Unseal(int32_t block);
  void Close(int32_t block);
  void PushFree(int32_t block, bool front);
  void UnlinkFree(int32_t block);

  int64_t block_tokens_;
  int64_t num_blocks_;
  int64_t open_end_;
  std::vector<Block> blocks_;
  std::vector<int32_t> tokens_;  // [most_blocks, block_tokens] of sealed blocks
  std::vector<int32_t>
      buckets_;  // open addressing, linear probing; a power of two, at most half full
  int32_t first_free_ = kNone;
  int32_t last_free_ = kNone;
  int64_t free_count_ = 0;
  int64_t closed_count_ = 0;
  int64_t sealed_count_ = 0;
  int64_t cached_count_ = 0;
  Counters counters_;
  PrefixId last_prefix_ = kEmptyPrefix;
};

}  // namespace moesaic
