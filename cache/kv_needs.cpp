#include "cache/kv_needs.h"

#include <algorithm>

namespace moesaic {

int64_t KvNeeds::KeptFrom(size_t group, int64_t computed) const {
  const int64_t window = windows[group];
  if (window == 0) return 0;
  const int64_t first = std::max<int64_t>(0, computed + 1 - window);
  return first / chunk_tokens * (chunk_tokens / block_tokens);
}

int64_t KvNeeds::MostOf(size_t group, int64_t tokens, int64_t step_tokens) const {
  const int64_t window = windows[group];
  if (window == 0) return BlocksFor(tokens);
  // Before a step the chunk that the window begins in is there as a whole.
  return BlocksFor(std::min(tokens, window + chunk_tokens + step_tokens));
}

int64_t KvNeeds::Most(int64_t tokens, int64_t step_tokens) const {
  int64_t most = 0;
  for (size_t g = 0; g < windows.size(); ++g) most += MostOf(g, tokens, step_tokens);
  return most;
}

int64_t KvNeeds::MostTogether(int64_t sequences, int64_t tokens, int64_t step_tokens) const {
  int64_t most = 0;
  for (size_t g = 0; g < windows.size(); ++g) {
    int64_t of_group = sequences * BlocksFor(tokens);
    if (windows[g] > 0) {
      // Each may have begun a block more than its share of the step fills.
      const int64_t kept = sequences * (BlocksFor(windows[g] + chunk_tokens) + 1);
      of_group = std::min(of_group, kept + BlocksFor(step_tokens));
    }
    most += of_group;
  }
  return most;
}

int64_t KvNeeds::Longest(int64_t num_blocks, int64_t step_tokens, int64_t most_tokens) const {
  int64_t low = 0;
  int64_t high = most_tokens;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (Most(middle, step_tokens) <= num_blocks) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace moesaic
