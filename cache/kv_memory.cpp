#include "cache/kv_memory.h"

#include <algorithm>
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

int64_t KvMemory::state_parts() const {
  if (state_bytes == 0) return 0;
  return static_cast<int64_t>((state_bytes + block_bytes() - 1) / block_bytes());
}

std::span<std::byte> KvMemory::StatePart(int32_t slot, int64_t part) const {
  CHECK_GE(slot, 0);
  CHECK_GE(part, 0);
  CHECK_LT(part, state_parts());
  const uint64_t begin = static_cast<uint64_t>(part) * block_bytes();
  return {states + static_cast<uint64_t>(slot) * state_bytes + begin,
          std::min(block_bytes(), state_bytes - begin)};
}

void KvMemory::GatherState(int32_t slot, int64_t part, std::span<std::byte> packed) const {
  CHECK_EQ(packed.size(), block_bytes());
  const std::span<std::byte> from = StatePart(slot, part);
  std::copy(from.begin(), from.end(), packed.begin());
  std::fill(packed.begin() + static_cast<std::ptrdiff_t>(from.size()), packed.end(), std::byte{});
}

void KvMemory::ScatterState(std::span<const std::byte> packed, int32_t slot, int64_t part) const {
  CHECK_EQ(packed.size(), block_bytes());
  const std::span<std::byte> to = StatePart(slot, part);
  std::copy_n(packed.begin(), to.size(), to.begin());
}

}  // namespace moesaic
