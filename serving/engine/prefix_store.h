// PrefixStore: where full blocks of keys and values, and recurrent states behind them, are kept
// beyond the pool, as the scheduler sees it. StoredPrefixes is the real one.
//
// Thread contract: the scheduler's thread.
#pragma once

#include <cstdint>

#include "cache/kv_block_pool.h"

namespace moesaic {

class StateSlots;
struct Sequence;

class PrefixStore {
 public:
  struct Progress {
    int64_t done = 0;         // of the blocks that were asked for, the first so many are there
    int64_t from_memory = 0;  // of these, nothing was read for
    bool ended = false;       // and no more will come
  };

  virtual ~PrefixStore() = default;

  // Of a model with recurrent layers, before all else. They outlive the last call.
  virtual void UseStates(const StateSlots& /*states*/) {}

  // A sequence runs, and has what the pool had of its prefix. How many of its first blocks, at
  // most `most` and those included, the store has, with the state behind them where there are
  // states; it is told of the sequence's blocks from here on.
  virtual int64_t Begin(Sequence& sequence, int64_t most) = 0;
  // Has the sequence's blocks [first, first + count) read, which it holds; `until`: the end of what
  // will be asked for. One read of a sequence at a time.
  virtual void Read(Sequence& sequence, int64_t first, int64_t count, int64_t until) = 0;
  // Has the state behind the sequence's first blocks read into this slot, which is a read of one
  // block, as it were.
  virtual void ReadState(Sequence& /*sequence*/, int64_t /*blocks*/, int32_t /*slot*/) {}
  virtual Progress Poll(const Sequence& sequence) const = 0;
  // Nothing is written to the sequence's blocks any more.
  virtual void Stop(Sequence& sequence) = 0;
  // This block of the sequence was computed and is sealed in the pool.
  virtual void Sealed(Sequence& sequence, int64_t block) = 0;
  // The state behind the sequence's first blocks is kept, under this number of the pool's. A
  // rolling one matters when the sequence ends, and the last one of these only.
  virtual void StateKept(Sequence& /*sequence*/, int64_t /*blocks*/, PrefixId /*prefix*/,
                         bool /*rolling*/) {}
  // The sequence gives its blocks back.
  virtual void End(Sequence& sequence) = 0;
};

}  // namespace moesaic
