#include "core/device/memory_arena.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "core/base/check.h"
#include "core/base/units.h"

namespace moesaic {

void ArenaBlock::Reset() {
  if (arena_ != nullptr) arena_->Free(data_, bytes_);
  arena_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

MemoryArena::MemoryArena(std::byte* base, uint64_t capacity_bytes, uint64_t alignment)
    : base_(base), alignment_(alignment), capacity_bytes_(capacity_bytes & ~(alignment - 1)) {
  CHECK(std::has_single_bit(alignment));
  CHECK_EQ(reinterpret_cast<uintptr_t>(base) % alignment, 0u);
  MutexLock lock(mutex_);
  if (capacity_bytes_ > 0) free_[0] = capacity_bytes_;
}

MemoryArena::~MemoryArena() {
  MutexLock lock(mutex_);
  CHECK_EQ(used_bytes_, 0u);  // a buffer outlives the device or the pool that it belongs to
}

std::optional<ArenaBlock> MemoryArena::Allocate(uint64_t bytes) {
  if (bytes == 0) return ArenaBlock();
  if (bytes > capacity_bytes_) return std::nullopt;
  const uint64_t rounded_bytes = RoundUp(bytes, alignment_);
  MutexLock lock(mutex_);
  auto best = free_.end();
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    if (piece->second < rounded_bytes) continue;
    if (best == free_.end() || piece->second < best->second) best = piece;
  }
  if (best == free_.end()) return std::nullopt;
  const uint64_t offset = best->first;
  const uint64_t left_bytes = best->second - rounded_bytes;
  free_.erase(best);
  if (left_bytes > 0) free_[offset + rounded_bytes] = left_bytes;
  used_bytes_ += rounded_bytes;
  return ArenaBlock(this, base_ + offset, bytes);
}

void MemoryArena::Free(std::byte* data, uint64_t bytes) {
  const auto offset = static_cast<uint64_t>(data - base_);
  const uint64_t rounded_bytes = RoundUp(bytes, alignment_);
  MutexLock lock(mutex_);
  CHECK_GE(used_bytes_, rounded_bytes);
  used_bytes_ -= rounded_bytes;
  auto piece = free_.emplace(offset, rounded_bytes).first;
  const auto next = std::next(piece);
  if (next != free_.end() && offset + rounded_bytes == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  const auto previous = std::prev(piece);
  if (previous->first + previous->second != offset) return;
  previous->second += piece->second;
  free_.erase(piece);
}

uint64_t MemoryArena::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

uint64_t MemoryArena::largest_free_bytes() const {
  MutexLock lock(mutex_);
  uint64_t largest_bytes = 0;
  for (const auto& [offset, bytes] : free_) largest_bytes = std::max(largest_bytes, bytes);
  return largest_bytes;
}

}  // namespace moesaic
