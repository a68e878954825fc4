// PinnedHostPool: a budget of host memory that a device can copy from and to at full speed, handed
// out in blocks: staging buffers, and the home of experts that a device fetches. Make one per NUMA
// node.
//
// Where the memory cannot be pinned (a limit of the machine) the pool holds ordinary memory of the
// same size: copies are slower, nothing else changes. The caller reports it once (why_not_pinned).
//
// Owned by whoever starts the engine; its buffers go before it. Thread contract: safe from any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/base/aligned_buffer.h"
#include "core/base/error.h"
#include "core/device/host_pinner.h"
#include "core/device/memory_arena.h"

namespace moesaic {

using HostBuffer = ArenaBlock;

class PinnedHostPool {
 public:
  // Direct reads (O_DIRECT) may land in a buffer.
  static constexpr uint64_t kAlignment = AlignedBuffer::kPageBytes;

  // Takes and pins all of the memory at once, in whole pages (rounded down). `pinner` outlives the
  // pool. numa_node -1: anywhere.
  // Throws Error(kResourceExhausted) when the machine has not got the memory.
  PinnedHostPool(uint64_t capacity_bytes, int numa_node, HostPinner& pinner);
  ~PinnedHostPool();
  PinnedHostPool(const PinnedHostPool&) = delete;
  PinnedHostPool& operator=(const PinnedHostPool&) = delete;

  // nullopt when the pool has no free piece of this size.
  std::optional<HostBuffer> Allocate(uint64_t bytes) { return arena_.Allocate(bytes); }

  bool pinned() const { return !why_not_pinned_; }
  const std::optional<Error>& why_not_pinned() const { return why_not_pinned_; }
  bool on_node() const { return on_node_; }  // placement on numa_node was asked for and granted

  uint64_t capacity_bytes() const { return arena_.capacity_bytes(); }
  uint64_t used_bytes() const { return arena_.used_bytes(); }
  uint64_t free_bytes() const { return arena_.free_bytes(); }
  uint64_t pinned_bytes() const { return pinned() ? capacity_bytes() : 0; }

 private:
  std::span<std::byte> pages() { return memory_.span().first(arena_.capacity_bytes()); }

  HostPinner& pinner_;
  AlignedBuffer memory_;
  MemoryArena arena_;
  bool on_node_;
  std::optional<Error> why_not_pinned_;
};

}  // namespace moesaic
