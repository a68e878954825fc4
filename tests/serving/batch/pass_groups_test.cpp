#include "serving/batch/pass_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace moesaic {
namespace {

// Rows of prompts, and positions that decoding rows read.
struct Load {
  int64_t prompts = 0;
  int64_t decoding = 0;
  int64_t most_prompts = 0;  // of one slice
  int64_t most_decoding = 0;

  void Add(const ScheduledSlice& slice) {
    if (slice.num_tokens > 1) {
      prompts += slice.num_tokens;
      most_prompts = std::max(most_prompts, slice.num_tokens);
    } else {
      decoding += slice.sequence->computed_tokens + 1;
      most_decoding = std::max(most_decoding, slice.sequence->computed_tokens + 1);
    }
  }
};

TEST(PassGroupsTest, EverySliceOnceAndBalanced) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<ScheduledSlice> slices;
    const auto count = static_cast<int64_t>(1 + random() % 40);
    Load all;
    for (int64_t s = 0; s < count; ++s) {
      sequences.push_back(std::make_unique<Sequence>());
      sequences.back()->computed_tokens = static_cast<int64_t>(random() % 500);
      const auto prompt = static_cast<int64_t>(2 + random() % 60);
      slices.push_back({sequences.back().get(), random() % 4 == 0 ? prompt : int64_t{1}});
      all.Add(slices.back());
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
      Load load;
      for (int64_t s = range.begin; s < range.end; ++s) {
        load.Add(ordered[static_cast<size_t>(s)]);
        EXPECT_TRUE(seen.insert(ordered[static_cast<size_t>(s)].sequence).second);
      }
      // Longest first onto the least: no group is ahead of the mean by more than a sequence.
      const auto groups_made = std::ssize(ranges);
      EXPECT_LE(load.prompts, all.prompts / groups_made + all.most_prompts) << "seed " << seed;
      EXPECT_LE(load.decoding, all.decoding / groups_made + all.most_decoding) << "seed " << seed;
    }
    EXPECT_EQ(next, count);
    if (groups == 1) {
      for (size_t s = 0; s < slices.size(); ++s) EXPECT_EQ(ordered[s].sequence, slices[s].sequence);
    }
  }
}

}  // namespace
}  // namespace moesaic
