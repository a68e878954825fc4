// ResizableKv: the blocks of keys and values of an engine whose number changes while it works, for
// who shares memory out between the models of a process (serving/multi/expert_pools.h).
//
// Thread contract: any thread.
#pragma once

#include <cstdint>

namespace moesaic {

struct KvInUse {
  uint64_t block_bytes = 0;
  int64_t slab_blocks = 1;  // their number changes by whole slabs
  int64_t held = 0;         // blocks whose memory it has
  int64_t usable = 0;       // as SetKvBlocks has it; fewer than held: the rest is on its way back
  int64_t least = 0;        // with which every request that it takes can run
  int64_t most = 0;
  int64_t running = 0;    // sequences
  int64_t most_used = 0;  // blocks that sequences had at a time, since it was looked at last
  uint64_t revived = 0;  // blocks of prefixes that were free when they were reused, since the start
  uint64_t waited_us = 0;  // in which sequences waited for blocks alone, summed over them, likewise
};

class ResizableKv {
 public:
  virtual ~ResizableKv() = default;

  virtual KvInUse LookAtKv() = 0;
  // There are to be so many, of `least` to `most`, in whole slabs. New ones can be used at once; of
  // those that are too many none is handed out any more, prefixes in them are forgotten, and what
  // sequences have of them stays theirs until they give it back.
  virtual void SetKvBlocks(int64_t blocks) = 0;
};

}  // namespace moesaic
