#include "serving/batch/pass_groups.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Tokens that the attention of a slice reads.
int64_t ContextReads(const ScheduledSlice& slice) {
  const int64_t tokens = slice.num_tokens;
  return tokens * slice.sequence->computed_tokens + tokens * (tokens + 1) / 2;
}

struct Group {
  int64_t reads = 0;
  std::vector<size_t> slices;
};

}  // namespace

std::vector<SliceRange> GroupSlices(int64_t groups, std::vector<ScheduledSlice>& slices) {
  CHECK_GE(groups, 1);
  const auto count = static_cast<int64_t>(slices.size());
  if (groups == 1) return {{0, count}};
  std::vector<size_t> longest_first(slices.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(), [&](size_t a, size_t b) {
    return ContextReads(slices[a]) > ContextReads(slices[b]);
  });
  std::vector<Group> all(static_cast<size_t>(std::min(groups, count)));
  for (const size_t slice : longest_first) {
    Group& least = *std::min_element(all.begin(), all.end(), [](const Group& a, const Group& b) {
      return a.reads != b.reads ? a.reads < b.reads : a.slices.size() < b.slices.size();
    });
    least.reads += ContextReads(slices[slice]);
    least.slices.push_back(slice);
  }
  std::vector<ScheduledSlice> ordered;
  ordered.reserve(slices.size());
  std::vector<SliceRange> ranges;
  for (Group& group : all) {
    std::sort(group.slices.begin(), group.slices.end());
    const auto begin = static_cast<int64_t>(ordered.size());
    for (const size_t slice : group.slices) ordered.push_back(slices[slice]);
    ranges.push_back({begin, static_cast<int64_t>(ordered.size())});
  }
  slices = std::move(ordered);
  return ranges;
}

}  // namespace moesaic
