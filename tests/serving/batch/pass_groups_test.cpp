#include "serving/batch/pass_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace moesaic {
namespace {

int64_t Reads(const ScheduledSlice& slice) {
  int64_t reads = 0;
  for (int64_t token = 0; token < slice.num_tokens; ++token) {
    reads += slice.sequence->computed_tokens + token + 1;
  }
  return reads;
}

TEST(PassGroupsTest, EverySliceOnceAndBalanced) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<ScheduledSlice> slices;
    const auto count = static_cast<int64_t>(1 + random() % 40);
    int64_t most = 0;
    int64_t total = 0;
    for (int64_t s = 0; s < count; ++s) {
      sequences.push_back(std::make_unique<Sequence>());
      sequences.back()->computed_tokens = static_cast<int64_t>(random() % 500);
      slices.push_back({sequences.back().get(), random() % 4 == 0 ? int64_t{20} : int64_t{1}});
      most = std::max(most, Reads(slices.back()));
      total += Reads(slices.back());
    }
    const auto groups = static_cast<int64_t>(1 + random() % 6);
    std::vector<ScheduledSlice> ordered = slices;
    const std::vector<SliceRange> ranges = GroupSlices(groups, ordered);
    ASSERT_EQ(std::ssize(ranges), std::min(groups, count)) << "seed " << seed;
    std::set<const Sequence*> seen;
    int64_t next = 0;
    for (const SliceRange& range : ranges) {
      EXPECT_EQ(range.begin, next);
      EXPECT_GT(range.end, range.begin) << "seed " << seed;
      next = range.end;
      int64_t reads = 0;
      for (int64_t s = range.begin; s < range.end; ++s) {
        reads += Reads(ordered[static_cast<size_t>(s)]);
        EXPECT_TRUE(seen.insert(ordered[static_cast<size_t>(s)].sequence).second);
      }
      // Longest first onto the least: no group is ahead of the mean by more than a sequence.
      EXPECT_LE(reads, total / std::ssize(ranges) + most) << "seed " << seed;
    }
    EXPECT_EQ(next, count);
    if (groups == 1) {
      for (size_t s = 0; s < slices.size(); ++s) EXPECT_EQ(ordered[s].sequence, slices[s].sequence);
    }
  }
}

}  // namespace
}  // namespace moesaic
