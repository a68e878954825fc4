// MemoryArena: hands out blocks of one contiguous piece of memory, of a device or of the host, and
// keeps the account of it. It does not own the memory and never touches it, so that it may be
// memory that the host cannot read.
//
// Thread contract: safe from any thread. Every block goes back before the arena does (CHECK).
//
// Blocks are allocated when an engine starts and seldom afterwards: the best fit is found by a walk
// over the free pieces, and neighbours are merged when a block comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "core/base/mutex.h"

namespace moesaic {

class MemoryArena;

// A block of an arena, returned to it by the destructor. Move-only; empty when default-made or
// moved from.
class ArenaBlock {
 public:
  ArenaBlock() = default;
  ~ArenaBlock() { Reset(); }
  ArenaBlock(ArenaBlock&& other) noexcept { *this = std::move(other); }
  ArenaBlock& operator=(ArenaBlock&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }  // as asked for
  std::span<std::byte> span() const { return {data_, bytes_}; }
  void Reset();

 private:
  friend class MemoryArena;
  ArenaBlock(MemoryArena* arena, std::byte* data, uint64_t bytes)
      : arena_(arena), data_(data), bytes_(bytes) {}

  MemoryArena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

class MemoryArena {
 public:
  // `alignment` is a power of two; `base` is aligned to it. Capacity is rounded down to it, every
  // block is accounted rounded up to it.
  MemoryArena(std::byte* base, uint64_t capacity_bytes, uint64_t alignment);
  ~MemoryArena();
  MemoryArena(const MemoryArena&) = delete;
  MemoryArena& operator=(const MemoryArena&) = delete;

  // nullopt when no free piece is large enough. No bytes: a block without memory.
  std::optional<ArenaBlock> Allocate(uint64_t bytes) EXCLUDES(mutex_);

  // used + free == capacity.
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const EXCLUDES(mutex_);
  uint64_t free_bytes() const { return capacity_bytes_ - used_bytes(); }
  uint64_t largest_free_bytes() const EXCLUDES(mutex_);  // the largest block that can be had now

 private:
  friend class ArenaBlock;
  void Free(std::byte* data, uint64_t bytes) EXCLUDES(mutex_);

  std::byte* const base_;
  const uint64_t alignment_;
  const uint64_t capacity_bytes_;
  mutable Mutex mutex_;
  std::map<uint64_t, uint64_t> free_ GUARDED_BY(mutex_);  // offset -> bytes, never two adjacent
  uint64_t used_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace moesaic
