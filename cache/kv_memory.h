// KvMemory: where the blocks of keys and values lie, layer by layer, and how the bytes of one block
// of a sequence are brought together and spread again; and where recurrent states lie. Plain data;
// owned by whoever has the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

struct KvMemory {
  struct Layer {
    std::byte* blocks = nullptr;  // [blocks, block_bytes]
    uint64_t block_bytes = 0;
    size_t group = 0;  // whose block numbers it goes by
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
