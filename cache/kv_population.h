// KvPopulation: has the kernel give memory before blocks are copied into it, in pieces of a few
// hundred microseconds: fresh pages are cleared when they are first written, which takes as long as
// reading a cached block does.
//
// Thread contract: one thread. The memory may be in use meanwhile; its contents stay.
#pragma once

#include <cstdint>
#include <span>

#include "cache/kv_memory.h"

namespace moesaic {

class KvPopulation {
 public:
  // `frames`, and then the first `blocks` blocks of the pools, which all lie together in each layer
  // (KvSlabs). Both outlive this.
  KvPopulation(const KvMemory& memory, int64_t blocks, std::span<std::byte> frames);

  bool done() const { return next_ >= pieces(); }
  void Next();  // a piece

 private:
  int64_t pieces() const { return frame_pieces_ + block_pieces_ * layers_; }

  const KvMemory& memory_;
  const std::span<std::byte> frames_;
  const int64_t blocks_;
  const int64_t layers_;
  const int64_t piece_blocks_;
  const int64_t frame_pieces_;
  const int64_t block_pieces_;  // of a layer
  int64_t next_ = 0;
};

}  // namespace moesaic
