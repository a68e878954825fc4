// KvNeeds: how many blocks of keys and values sequences hold, in each group of layers
// (core/config/kv_groups.h) and in all. Plain data and arithmetic.
//
// A group without a window holds a block for every block_tokens tokens of a sequence. One with a
// window holds what tokens to come attend to, and what the running step has computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesaic {

struct KvNeeds {
  std::vector<int64_t> windows;  // [groups] tokens; 0: all of the context is attended to
  int64_t block_tokens = 0;
  // Tokens are attended to in chunks of so many (a multiple of block_tokens): a chunk stays as a
  // whole while the window reaches into it.
  int64_t chunk_tokens = 0;

  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  // Blocks before it hold nothing that a token from `computed` on attends to.
  int64_t KeptFrom(size_t group, int64_t computed) const;

  // That a sequence of so many tokens, computed at most `step_tokens` at a time, has at once.
  int64_t MostOf(size_t group, int64_t tokens, int64_t step_tokens) const;
  // Likewise in all groups.
  int64_t Most(int64_t tokens, int64_t step_tokens) const;
  // Likewise of so many sequences, if steps compute `step_tokens` of all of them.
  int64_t MostTogether(int64_t sequences, int64_t tokens, int64_t step_tokens) const;
  // Tokens of the longest sequence that so many blocks hold alone, at most `most_tokens`.
  int64_t Longest(int64_t num_blocks, int64_t step_tokens, int64_t most_tokens) const;
};

}  // namespace moesaic
