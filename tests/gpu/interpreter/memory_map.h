// MemoryMap: the memory that the emulated GPUs know: what was taken or registered, and the blocks
// that an arena has handed out of it. An access must lie within one block.
//
// One for the process (the CUDA runtime has no other context), kept by the machine (machine.h).
// Thread contract: safe from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/base/mutex.h"
#include "tests/gpu/interpreter/race_check.h"

namespace moesaic::ptx {

enum class MemoryKind : uint8_t {
  kDevice,
  kPinned,  // of the host, for copies only
  kMapped,  // of the host, for kernels too
};

// Memory that may be accessed as one piece.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  uint64_t region_begin = 0;
  AccessCell* cells = nullptr;  // of the region: one for every two bytes

  bool Contains(uint64_t address, uint64_t bytes) const {
    return address >= begin && bytes <= end - begin && address - begin <= end - begin - bytes;
  }
};

class MemoryMap {
 public:
  MemoryMap() = default;
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  // False: some of it is known already.
  bool Add(uint64_t begin, uint64_t bytes, MemoryKind kind, int device) EXCLUDES(mutex_);
  // Its size; nullopt: no region begins there.
  std::optional<uint64_t> Remove(uint64_t begin) EXCLUDES(mutex_);
  // A block that an arena handed out of a region, and took back. Unknown memory is ignored: not
  // every arena is one of device memory.
  std::optional<Extent> AddBlock(uint64_t begin, uint64_t bytes) EXCLUDES(mutex_);
  void RemoveBlock(uint64_t begin) EXCLUDES(mutex_);

  // The block, or undivided region, that has these bytes; or why there is none.
  std::optional<Extent> Find(uint64_t address, uint64_t bytes, std::string* why_not = nullptr) const
      EXCLUDES(mutex_);
  // The region, whatever was handed out of it.
  std::optional<Extent> FindRegion(uint64_t address) const EXCLUDES(mutex_);
  uint64_t DeviceBytes(int device) const EXCLUDES(mutex_);

  // Changes with every change: an extent that was found stays right as long as this does.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  struct Region {
    uint64_t bytes = 0;
    MemoryKind kind = MemoryKind::kDevice;
    int device = 0;
    AccessCell* cells = nullptr;
    bool divided = false;
    std::map<uint64_t, uint64_t> blocks;  // begin -> bytes
  };
  using Regions = std::map<uint64_t, Region>;
  Regions::const_iterator RegionOf(uint64_t address) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  Regions regions_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> generation_{1};
};

}  // namespace moesaic::ptx
