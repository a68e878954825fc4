#include "core/device/memory_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

TEST(MemoryArenaTest, TakesTheSmallestPieceThatFits) {
  AlignedBuffer memory(4096);
  MemoryArena arena(memory.data(), memory.bytes(), 256);
  std::vector<ArenaBlock> blocks;
  blocks.reserve(5);
  for (const uint64_t bytes : {512, 256, 1024, 256, 768}) {
    blocks.push_back(std::move(*arena.Allocate(bytes)));
  }
  std::byte* small = blocks[0].data();
  blocks[2].Reset();
  blocks[0].Reset();
  EXPECT_EQ(arena.Allocate(300)->data(), small);
  EXPECT_EQ(arena.largest_free_bytes(), 1280u);  // what nobody has had yet
}

TEST(MemoryArenaTest, RoundsItsCapacityDown) {
  AlignedBuffer memory(4096);
  const MemoryArena arena(memory.data(), 1000, 256);
  EXPECT_EQ(arena.capacity_bytes(), 768u);
  EXPECT_EQ(arena.largest_free_bytes(), 768u);
  const MemoryArena empty(nullptr, 255, 256);
  EXPECT_EQ(empty.capacity_bytes(), 0u);
  EXPECT_EQ(empty.largest_free_bytes(), 0u);
}

TEST(MemoryArenaTest, RandomUseAgainstAMapOfBytes) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kUnit = 64;
  constexpr uint64_t kUnits = 100;
  AlignedBuffer memory(kUnit * kUnits);
  for (int schedule = 0; schedule < 200; ++schedule) {
    MemoryArena arena(memory.data(), memory.bytes(), kUnit);
    std::vector<int> owner(kUnits, 0);
    std::map<int, ArenaBlock> blocks;
    const auto longest_free = [&] {
      uint64_t longest = 0;
      uint64_t run = 0;
      for (const int unit : owner) longest = std::max(longest, run = unit == 0 ? run + 1 : 0);
      return longest;
    };
    for (int step = 1; step < 200; ++step) {
      if (!blocks.empty() && random() % 2 == 0) {
        const auto it =
            std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
        std::replace(owner.begin(), owner.end(), it->first, 0);
        blocks.erase(it);
      } else {
        const uint64_t bytes = 1 + random() % (kUnit * 30);
        const uint64_t units = RoundUp(bytes, kUnit) / kUnit;
        auto block = arena.Allocate(bytes);
        ASSERT_EQ(block.has_value(), units <= longest_free());
        if (!block) continue;
        const auto first = static_cast<uint64_t>(block->data() - memory.data()) / kUnit;
        for (uint64_t unit = first; unit < first + units; ++unit) {
          ASSERT_EQ(std::exchange(owner[unit], step), 0);
        }
        blocks.emplace(step, std::move(*block));
      }
      ASSERT_EQ(arena.largest_free_bytes(), longest_free() * kUnit);
      ASSERT_EQ(arena.free_bytes(),
                static_cast<uint64_t>(std::count(owner.begin(), owner.end(), 0)) * kUnit);
    }
    blocks.clear();
    ASSERT_EQ(arena.largest_free_bytes(), kUnit * kUnits);
  }
}

}  // namespace
}  // namespace moesaic
