#include "serving/multi/memory_shares.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Rounded down.
uint64_t Part(uint64_t bytes, uint64_t part, uint64_t whole) {
  if (whole == 0) return 0;
  const auto share = static_cast<long double>(part) / static_cast<long double>(whole);
  return std::min(bytes, static_cast<uint64_t>(static_cast<long double>(bytes) * share));
}

}  // namespace

std::vector<uint64_t> ShareMemory(uint64_t bytes, std::span<const MemoryNeed> needs) {
  uint64_t least = 0;
  uint64_t most = 0;
  for (const MemoryNeed& need : needs) {
    CHECK_LE(need.least_bytes, need.most_bytes);
    if (need.least_bytes > bytes - least) return {};
    least += need.least_bytes;
    most += need.most_bytes;
  }
  std::vector<uint64_t> shares;
  uint64_t left = bytes;
  for (const MemoryNeed& need : needs) {
    const uint64_t share =
        most <= bytes ? need.most_bytes + Part(bytes - most, need.most_bytes, most)
                      : need.least_bytes + Part(bytes - least, need.most_bytes - need.least_bytes,
                                                most - least);
    shares.push_back(std::min(share, left));
    left -= shares.back();
  }
  return shares;
}

}  // namespace moesaic
