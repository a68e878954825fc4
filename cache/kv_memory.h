// KvMemory: where the blocks of keys and values lie, layer by layer, and how the bytes of one block
// of a sequence are brought together and spread again; and where recurrent states lie. Plain data;
// owned by whoever has the memory.
//
// Blocks of consecutive numbers lie together in each layer. Where their number changes (KvSlabs)
// only those of a slab do, of all layers, one slab behind the other: what the last slabs take can
// be given back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace moesaic {

struct KvSlabs {
  int64_t blocks = std::numeric_limits<int64_t>::max();  // of a slab: all are of one
  uint64_t slab_bytes = 0;                               // of all layers

  // Of all slabs of so many blocks; the last one may not be full.
  uint64_t Bytes(int64_t num_blocks) const {
    return static_cast<uint64_t>((num_blocks + blocks - 1) / blocks) * slab_bytes;
  }
  // Of a block of a layer whose first `before_bytes` of each block number are other layers', in
  // bytes from the beginning.
  uint64_t Offset(int64_t block, uint64_t before_bytes, uint64_t block_bytes) const {
    const auto slab = static_cast<uint64_t>(block / blocks);
    const auto place = static_cast<uint64_t>(block % blocks);
    return slab * slab_bytes + before_bytes * static_cast<uint64_t>(blocks) + place * block_bytes;
  }
};

struct KvMemory {
  struct Layer {
    std::byte* blocks = nullptr;  // that of the layer in the first slab
    uint64_t block_bytes = 0;
    size_t group = 0;  // whose block numbers it goes by
    KvSlabs slabs = {};

    std::byte* Block(int32_t block) const { return blocks + slabs.Offset(block, 0, block_bytes); }
  };
  std::vector<Layer> layers;  // in the order of the model's; those without keys and values left out
  // Of all recurrent layers (state_slots.h); null where there are none.
  std::byte* states = nullptr;  // [slots, state_bytes]
  uint64_t state_bytes = 0;

  // Of a block of a sequence, all layers.
  uint64_t block_bytes() const;
  // Between these blocks, one of each group, and `packed` [block_bytes()]: layer after layer. The
  // blocks are nobody else's meanwhile.
  void Gather(std::span<const int32_t> blocks, std::span<std::byte> packed) const;
  void Scatter(std::span<const std::byte> packed, std::span<const int32_t> blocks) const;

  // Parts of a state that are as large as blocks, or the last one smaller.
  int64_t state_parts() const;
  // Likewise for one of them; what a last one leaves of `packed` is zeros.
  void GatherState(int32_t slot, int64_t part, std::span<std::byte> packed) const;
  void ScatterState(std::span<const std::byte> packed, int32_t slot, int64_t part) const;

 private:
  std::span<std::byte> StatePart(int32_t slot, int64_t part) const;
};

}  // namespace moesaic
