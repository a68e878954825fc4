// How several models share a memory: each gets the least that it can do with, the rest goes where
// experts are missing. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

struct MemoryNeed {
  uint64_t least_bytes = 0;  // with no more experts than it keeps in any case
  uint64_t most_bytes = 0;   // with all its experts; at least least_bytes
};

// A share for each, which together are at most `bytes`: the least of all; what is left in
// proportion to what each lacks of its most; what is still left (for keys and values) in proportion
// to the most. Empty: the least of all are more than `bytes`.
std::vector<uint64_t> ShareMemory(uint64_t bytes, std::span<const MemoryNeed> needs);

}  // namespace moesaic
