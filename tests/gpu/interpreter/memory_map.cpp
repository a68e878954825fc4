#include "tests/gpu/interpreter/memory_map.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <iterator>

#include "core/base/check.h"

namespace moesaic::ptx {
namespace {

uint64_t CellBytes(uint64_t bytes) { return (bytes + 1) / 2 * sizeof(AccessCell); }

// All zero, and none of it is there until it is touched.
AccessCell* TakeCells(uint64_t bytes) {
  void* cells = mmap(nullptr, CellBytes(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(cells != MAP_FAILED);
  return static_cast<AccessCell*>(cells);
}

}  // namespace

MemoryMap::~MemoryMap() {
  MutexLock lock(mutex_);
  for (auto& [begin, region] : regions_) munmap(region.cells, CellBytes(region.bytes));
}

// The last region that begins at or before the address.
MemoryMap::Regions::const_iterator MemoryMap::RegionOf(uint64_t address) const {
  auto next = regions_.upper_bound(address);
  if (next == regions_.begin()) return regions_.end();
  const auto region = std::prev(next);
  return address - region->first < region->second.bytes ? region : regions_.end();
}

bool MemoryMap::Add(uint64_t begin, uint64_t bytes, MemoryKind kind, int device) {
  MutexLock lock(mutex_);
  const auto next = regions_.lower_bound(begin);
  if (RegionOf(begin) != regions_.end()) return false;
  if (next != regions_.end() && next->first - begin < bytes) return false;
  Region& region = regions_[begin];
  region.bytes = bytes;
  region.kind = kind;
  region.device = device;
  region.cells = TakeCells(bytes);
  generation_.fetch_add(1);
  return true;
}

std::optional<uint64_t> MemoryMap::Remove(uint64_t begin) {
  MutexLock lock(mutex_);
  const auto region = regions_.find(begin);
  if (region == regions_.end()) return std::nullopt;
  const uint64_t bytes = region->second.bytes;
  munmap(region->second.cells, CellBytes(bytes));
  regions_.erase(region);
  generation_.fetch_add(1);
  return bytes;
}

std::optional<Extent> MemoryMap::AddBlock(uint64_t begin, uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto found = RegionOf(begin);
  if (found == regions_.end()) return std::nullopt;
  Region& region = regions_[found->first];
  region.divided = true;
  region.blocks[begin] = bytes;
  generation_.fetch_add(1);
  return Extent{begin, begin + bytes, region.kind, region.device, found->first, region.cells};
}

void MemoryMap::RemoveBlock(uint64_t begin) {
  MutexLock lock(mutex_);
  const auto found = RegionOf(begin);
  if (found == regions_.end()) return;
  regions_[found->first].blocks.erase(begin);
  generation_.fetch_add(1);
}

std::optional<Extent> MemoryMap::Find(uint64_t address, uint64_t bytes,
                                      std::string* why_not) const {
  MutexLock lock(mutex_);
  const auto fail = [why_not](std::string text) {
    if (why_not != nullptr) *why_not = std::move(text);
    return std::nullopt;
  };
  const auto found = RegionOf(address);
  if (found == regions_.end()) {
    return fail(
        fmt::format("{} bytes at {:#x}: nobody took or registered this memory", bytes, address));
  }
  const auto& [region_begin, region] = *found;
  Extent extent{region_begin, region_begin + region.bytes, region.kind, region.device, region_begin,
                region.cells};
  if (region.divided) {
    const auto next = region.blocks.upper_bound(address);
    if (next == region.blocks.begin()) {
      return fail(fmt::format("{} bytes at {:#x}: in no buffer of its device", bytes, address));
    }
    const auto& [begin, block_bytes] = *std::prev(next);
    extent.begin = begin;
    extent.end = begin + block_bytes;
  }
  if (!extent.Contains(address, bytes)) {
    return fail(fmt::format("{} bytes at {:#x}: {} bytes after the beginning of a buffer of {}",
                            bytes, address, address - extent.begin, extent.end - extent.begin));
  }
  return extent;
}

std::optional<Extent> MemoryMap::FindRegion(uint64_t address) const {
  MutexLock lock(mutex_);
  const auto found = RegionOf(address);
  if (found == regions_.end()) return std::nullopt;
  const auto& [begin, region] = *found;
  return Extent{begin, begin + region.bytes, region.kind, region.device, begin, region.cells};
}

uint64_t MemoryMap::DeviceBytes(int device) const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [begin, region] : regions_) {
    if (region.kind == MemoryKind::kDevice && region.device == device) bytes += region.bytes;
  }
  return bytes;
}

}  // namespace moesaic::ptx
