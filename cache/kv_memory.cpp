#include "cache/kv_memory.h"

#include <cstring>

#include "core/base/check.h"

namespace moesaic {
namespace {

std::byte* BlockOfLayer(const KvMemory::Layer& layer, std::span<const int32_t> blocks) {
  const int32_t block = blocks[layer.group];
  CHECK_GE(block, 0);
  return layer.Block(block);
}

}  // namespace

uint64_t KvMemory::block_bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers) bytes += layer.block_bytes;
  return bytes;
}

void KvMemory::Gather(std::span<const int32_t> blocks, std::span<std::byte> packed) const {
  CHECK_EQ(packed.size(), block_bytes());
  std::byte* to = packed.data();
  for (const Layer& layer : layers) {
    std::memcpy(to, BlockOfLayer(layer, blocks), layer.block_bytes);
    to += layer.block_bytes;
  }
}

void KvMemory::Scatter(std::span<const std::byte> packed, std::span<const int32_t> blocks) const {
  CHECK_EQ(packed.size(), block_bytes());
  const std::byte* from = packed.data();
  for (const Layer& layer : layers) {
    std::memcpy(BlockOfLayer(layer, blocks), from, layer.block_bytes);
    from += layer.block_bytes;
  }
}

}  // namespace moesaic
