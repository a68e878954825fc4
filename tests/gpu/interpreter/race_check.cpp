#include "tests/gpu/interpreter/race_check.h"

#include <fmt/format.h>

#include <atomic>

namespace moesaic::ptx {

uint64_t RaceCheck::NewInterval() {
  static std::atomic<uint64_t> last{0};
  return interval_ = last.fetch_add(1) + 1;
}

// Whether nothing orders an access before the one that `who` makes now.
bool RaceCheck::Unordered(uint64_t access, Who who, uint64_t scope_first) const {
  const uint64_t interval = IntervalOf(access);
  if (interval < scope_first) return false;
  if (interval < block_first_) return true;
  if (interval != interval_ || ThreadOf(access) == who.thread) return false;
  const bool same_warp = ThreadOf(access) / 32 == who.thread / 32;
  return !same_warp || WarpIntervalOf(access) == (who.warp_interval & 0x3fff);
}

// The same of the readers of a cell, of which only the last is known by name.
bool RaceCheck::ReadUnordered(uint64_t access, Who who, uint64_t scope_first) const {
  const uint64_t interval = IntervalOf(access);
  if (interval < scope_first) return false;
  if (ReadersOf(access) == Readers::kManyBlocks) return true;
  if (interval < block_first_) return true;
  if (interval != interval_) return false;
  switch (ReadersOf(access)) {
    case Readers::kManyWarps:
      return true;
    case Readers::kOneWarp:
      return ThreadOf(access) / 32 != who.thread / 32 ||
             WarpIntervalOf(access) == (who.warp_interval & 0x3fff);
    default:
      return Unordered(access, who, scope_first);
  }
}

// The readers of a cell after `who` has read it too.
uint64_t RaceCheck::Joined(uint64_t reader, Who who, uint64_t scope_first) const {
  const uint64_t interval = IntervalOf(reader);
  if (interval < scope_first) return Pack(who, Readers::kSingle);
  if (interval < block_first_ || ReadersOf(reader) == Readers::kManyBlocks) {
    return Pack(who, Readers::kManyBlocks);
  }
  if (interval != interval_) return Pack(who, Readers::kSingle);
  if (ReadersOf(reader) == Readers::kManyWarps) return reader;
  if (ThreadOf(reader) / 32 != who.thread / 32) return Pack(who, Readers::kManyWarps);
  // Readers before a barrier of the warp matter to other warps only, to which this one stands for
  // them.
  if (WarpIntervalOf(reader) != (who.warp_interval & 0x3fff)) return Pack(who, Readers::kSingle);
  if (ThreadOf(reader) == who.thread) return reader;
  return Pack(who, Readers::kOneWarp);
}

std::string RaceCheck::Describe(uint64_t access, const char* did) const {
  return fmt::format("race: thread {} of {} {} this, and no barrier lies between", ThreadOf(access),
                     IntervalOf(access) < block_first_ ? "another block" : "the same block", did);
}

std::optional<std::string> RaceCheck::Read(AccessCell& cell, Who who, bool shared) {
  const uint64_t scope_first = shared ? block_first_ : launch_first_;
  if (Unordered(cell.writer, who, scope_first)) return Describe(cell.writer, "wrote");
  cell.reader = Joined(cell.reader, who, scope_first);
  return std::nullopt;
}

std::optional<std::string> RaceCheck::Write(AccessCell& cell, Who who, bool shared) {
  const uint64_t scope_first = shared ? block_first_ : launch_first_;
  if (Unordered(cell.writer, who, scope_first)) return Describe(cell.writer, "wrote");
  if (ReadUnordered(cell.reader, who, scope_first)) return Describe(cell.reader, "read");
  cell.writer = Pack(who, Readers::kSingle);
  return std::nullopt;
}

}  // namespace moesaic::ptx
