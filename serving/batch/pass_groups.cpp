#include "serving/batch/pass_groups.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

struct Group {
  int64_t load = 0;
  std::vector<size_t> slices;
};

// The longest first, each to the group that has least, of several the one with the fewest slices.
void Spread(std::vector<std::pair<int64_t, size_t>>& loads, std::vector<Group>& groups) {
  std::stable_sort(loads.begin(), loads.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (Group& group : groups) group.load = 0;
  for (const auto& [load, slice] : loads) {
    Group& least =
        *std::min_element(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
          return a.load != b.load ? a.load < b.load : a.slices.size() < b.slices.size();
        });
    least.load += load;
    least.slices.push_back(slice);
  }
}

}  // namespace

std::vector<SliceRange> GroupSlices(int64_t groups, std::vector<ScheduledSlice>& slices) {
  CHECK_GE(groups, 1);
  const auto count = static_cast<int64_t>(slices.size());
  if (groups == 1) return {{0, count}};
  std::vector<std::pair<int64_t, size_t>> prompts;   // by rows
  std::vector<std::pair<int64_t, size_t>> decoding;  // by the positions that they read
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].num_tokens > 1) {
      prompts.emplace_back(slices[i].num_tokens, i);
    } else {
      decoding.emplace_back(slices[i].sequence->computed_tokens + 1, i);
    }
  }
  std::vector<Group> all(static_cast<size_t>(std::min(groups, count)));
  Spread(prompts, all);
  Spread(decoding, all);  // to groups without a prompt first, so that none is empty
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
