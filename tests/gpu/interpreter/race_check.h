// RaceCheck: finds two threads that access the same memory in an order that nothing settles, one of
// them writing. Within a block bar.sync settles an order, between lanes of a warp bar.warp.sync
// does; between blocks of a launch nothing does. Launches are ordered by their streams, which this
// does not follow.
//
// Threads run one after another here, so a race shows in no value: it is found from who accessed a
// piece of memory last, and in which interval between barriers. Owned by the launch, used by its
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace moesaic::ptx {

// The accesses to a piece of memory that matter, packed; 0: none.
struct AccessCell {
  uint64_t writer = 0;
  uint64_t reader = 0;
};

class RaceCheck {
 public:
  RaceCheck() : launch_first_(NewInterval()) {}

  void BeginBlock() { block_first_ = NewInterval(); }
  void Barrier() { NewInterval(); }

  // Who accesses: a thread of the running block, and how many barriers of its warp came before.
  struct Who {
    uint32_t thread = 0;
    uint32_t warp_interval = 0;
  };

  // Notes an access; what it races with, if anything. `shared`: the memory is the block's.
  std::optional<std::string> Read(AccessCell& cell, Who who, bool shared);
  std::optional<std::string> Write(AccessCell& cell, Who who, bool shared);
  // Whether this block has written it.
  bool WrittenByBlock(const AccessCell& cell) const {
    return IntervalOf(cell.writer) >= block_first_;
  }

 private:
  // interval 38 bits, thread 10, interval of the warp 14, readers 2.
  enum class Readers : uint64_t { kSingle, kOneWarp, kManyWarps, kManyBlocks };
  static uint64_t IntervalOf(uint64_t access) { return access >> 26; }
  static uint32_t ThreadOf(uint64_t access) { return access >> 16 & 1023; }
  static uint32_t WarpIntervalOf(uint64_t access) { return access >> 2 & 0x3fff; }
  static Readers ReadersOf(uint64_t access) { return static_cast<Readers>(access & 3); }
  uint64_t Pack(Who who, Readers readers) const {
    return interval_ << 26 | uint64_t{who.thread} << 16 |
           uint64_t{who.warp_interval & 0x3fff} << 2 | static_cast<uint64_t>(readers);
  }

  uint64_t NewInterval();
  bool Unordered(uint64_t access, Who who, uint64_t scope_first) const;
  bool ReadUnordered(uint64_t access, Who who, uint64_t scope_first) const;
  uint64_t Joined(uint64_t reader, Who who, uint64_t scope_first) const;
  std::string Describe(uint64_t access, const char* did) const;

  // Intervals of all launches are numbered in one sequence, so that what was left in a cell by an
  // earlier launch is known by its number.
  uint64_t interval_ = 0;
  uint64_t launch_first_ = 0;
  uint64_t block_first_ = 0;
};

}  // namespace moesaic::ptx
