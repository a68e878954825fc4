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

// Slices with so many rows each, of sequences that have computed so many tokens before.
struct GivenSlice {
  int64_t rows = 1;
  int64_t computed = 0;
};

// Which slices are in each group, by their numbers, in order.
std::vector<std::vector<size_t>> GroupsOf(int64_t groups, const std::vector<GivenSlice>& given) {
  std::vector<Sequence> sequences(given.size());
  std::vector<ScheduledSlice> slices;
  for (size_t i = 0; i < given.size(); ++i) {
    sequences[i].computed_tokens = given[i].computed;
    slices.push_back({&sequences[i], given[i].rows});
  }
  std::vector<std::vector<size_t>> result;
  for (const SliceRange& range : GroupSlices(groups, slices)) {
    result.emplace_back();
    for (int64_t s = range.begin; s < range.end; ++s) {
      const ScheduledSlice& slice = slices[static_cast<size_t>(s)];
      const auto number = static_cast<size_t>(slice.sequence - sequences.data());
      EXPECT_EQ(slice.num_tokens, given[number].rows);
      result.back().push_back(number);
    }
  }
  return result;
}

using Groups = std::vector<std::vector<size_t>>;

TEST(PassGroupsTest, TheLongestGoFirstToWhereThereIsLeast) {
  // Of 10, 7, 5 and 4 positions: 10 | 7, 10 | 7 5, 10 4 | 7 5; within a group as they were given.
  EXPECT_EQ(GroupsOf(2, {{1, 6}, {1, 3}, {1, 9}, {1, 4}}), (Groups{{1, 2}, {0, 3}}));
  // The same of prompts, by their rows, whatever was computed before.
  EXPECT_EQ(GroupsOf(2, {{7, 0}, {4, 90}, {10, 5}, {5, 70}}), (Groups{{1, 2}, {0, 3}}));
  // One long one is left alone.
  EXPECT_EQ(GroupsOf(2, {{1, 1}, {1, 99}, {1, 2}, {1, 3}}), (Groups{{1}, {0, 2, 3}}));
}

TEST(PassGroupsTest, EqualOnesKeepTheirOrder) {
  EXPECT_EQ(GroupsOf(2, {{1, 5}, {1, 5}, {1, 5}, {1, 5}}), (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(GroupsOf(3, {{8, 0}, {8, 0}, {8, 0}, {8, 0}}), (Groups{{0, 3}, {1}, {2}}));
  // Also when there are many: they take turns.
  const Groups turns = GroupsOf(3, std::vector<GivenSlice>(50, {1, 5}));
  ASSERT_EQ(turns.size(), 3u);
  for (size_t group = 0; group < 3; ++group) {
    for (size_t i = 0; i < turns[group].size(); ++i) EXPECT_EQ(turns[group][i], 3 * i + group);
  }
}

// Decoding ones are spread by themselves: a group's prompt does not count as what it reads.
TEST(PassGroupsTest, PromptsAndDecodingOnesApart) {
  EXPECT_EQ(GroupsOf(2, {{40, 0}, {3, 0}, {1, 9}, {1, 8}, {1, 7}}), (Groups{{0, 2}, {1, 3, 4}}));
  // But a group without a prompt comes first, so that none is empty.
  EXPECT_EQ(GroupsOf(3, {{40, 0}, {1, 5}, {1, 9}}), (Groups{{0}, {2}, {1}}));
  EXPECT_EQ(GroupsOf(2, {{40, 0}, {1, 9}, {1, 8}}), (Groups{{0, 2}, {1}}));
  // A prompt of one token is a row that reads one position.
  EXPECT_EQ(GroupsOf(2, {{1, 0}, {1, 50}, {1, 20}}), (Groups{{1}, {0, 2}}));
}

TEST(PassGroupsTest, NoMoreGroupsThanSlices) {
  EXPECT_EQ(GroupsOf(5, {{1, 3}, {9, 0}}), (Groups{{1}, {0}}));
  EXPECT_EQ(GroupsOf(1, {{1, 3}, {9, 0}, {1, 5}}), (Groups{{0, 1, 2}}));
}

}  // namespace
}  // namespace moesaic
