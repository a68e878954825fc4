// Blocks that no later token attends to are given back while a sequence runs, and hold something
// else soon after: no bit of the sequence changes, and what it holds stays bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cache/kv_pools.h"
#include "core/config/kv_groups.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

constexpr int64_t kChunk = 64;
constexpr int64_t kPrompt = 560;
constexpr int64_t kSteps = 30;
constexpr int64_t kNoiseTokens = 40;
constexpr int64_t kBlocks = 48;

class KvWindowTest : public testing::TestWithParam<const char*> {
 protected:
  KvWindowTest() : harness_(FixtureModel(GetParam()), Options()) {}

  static HarnessOptions Options() {
    HarnessOptions options;
    options.isa = SupportedIsas().back();
    options.threads = 2;
    options.max_batch_tokens = kChunk;
    options.max_context_tokens = 640;
    options.kv_blocks = kBlocks;
    return options;
  }

  void Forward(const std::vector<int32_t>& tokens, int64_t start, const SequenceBlocks& blocks) {
    SequenceSlice slice;
    slice.num_tokens = std::ssize(tokens);
    slice.start_position = start;
    slice.blocks = blocks.tables.front().blocks;
    slice.tables = &blocks;
    harness_.model().Forward({tokens, {&slice, 1}}, nullptr);
  }

  // Logits of the last row of each step. With windows each step is followed by one of another
  // sequence, which ends at once.
  std::vector<std::vector<float>> Run(const std::vector<KvGroupSize>& sizes, bool noise) {
    KvPools pools(sizes, kKvBlockTokens, kAttentionChunkTokens);
    const auto vocab = static_cast<int>(harness_.config().vocab_size);
    const std::vector<int32_t> tokens = PromptOf(4, kPrompt + kSteps, vocab);
    std::vector<std::vector<float>> logits;
    SequenceBlocks blocks;
    for (int64_t start = 0; start < kPrompt + kSteps;) {
      const int64_t count = start < kPrompt ? std::min(kChunk, kPrompt - start) : 1;
      EXPECT_TRUE(pools.Grow(blocks, start + count));
      Forward({tokens.begin() + start, tokens.begin() + start + count}, start, blocks);
      const auto last = static_cast<int32_t>(count - 1);
      harness_.model().Logits({&last, 1}, logits.emplace_back(static_cast<size_t>(vocab)).data());
      start += count;
      pools.GiveBackBehind(blocks, start);
      for (size_t g = 0; g < sizes.size(); ++g) {
        most_used_.resize(sizes.size());
        most_used_[g] = std::max(most_used_[g], pools.pool(g).used_blocks());
      }
      if (!noise) continue;
      SequenceBlocks other;
      EXPECT_TRUE(pools.Grow(other, kNoiseTokens));
      Forward(PromptOf(static_cast<int>(start), kNoiseTokens, vocab), 0, other);
      pools.Release(other);
    }
    pools.Release(blocks);
    return logits;
  }

  // Else a run could find what the last one left in blocks that are not its own.
  void Overwrite(size_t groups) {
    for (int32_t block = 0; block < kBlocks; ++block) {
      SequenceBlocks other;
      other.tables.assign(groups, {.blocks = {block}});
      Forward(PromptOf(1000 + block, kKvBlockTokens, 100), 0, other);
    }
  }

  ModelHarness harness_;
  std::vector<int64_t> most_used_;  // [groups] of the last Run
};

TEST_P(KvWindowTest, GivenBackBlocksChangeNoBit) {
  const KvGroups groups = KvGroupsOf(harness_.config());
  std::vector<KvGroupSize> all;
  std::vector<KvGroupSize> windows;
  bool any_window = false;
  for (const int64_t window : groups.windows) {
    all.push_back({kBlocks, 0});
    // Room for what the window reaches and the other sequence, no more.
    const int64_t bounded =
        (window + kAttentionChunkTokens + kChunk + kNoiseTokens) / kKvBlockTokens + 2;
    windows.push_back({window > 0 ? bounded : kBlocks, window});
    any_window = any_window || window > 0;
    ASSERT_LT(bounded, (kPrompt + kSteps) / kKvBlockTokens);
  }
  ASSERT_TRUE(any_window);
  const std::vector<std::vector<float>> expected = Run(all, false);
  for (const int64_t used : most_used_) EXPECT_GE(used, (kPrompt + kSteps) / kKvBlockTokens);
  most_used_.clear();
  Overwrite(groups.count());
  const std::vector<std::vector<float>> seen = Run(windows, true);
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t step = 0; step < seen.size(); ++step) {
    ASSERT_TRUE(seen[step] == expected[step]) << "step " << step;
  }
  for (size_t g = 0; g < groups.count(); ++g) {
    if (groups.windows[g] > 0) {
      EXPECT_LE(most_used_[g], windows[g].num_blocks - kNoiseTokens / kKvBlockTokens) << g;
    } else {
      EXPECT_GE(most_used_[g], (kPrompt + kSteps) / kKvBlockTokens) << g;
    }
  }
}

// A window in every layer, in every second one, and in all but the first.
INSTANTIATE_TEST_SUITE_P(Models, KvWindowTest,
                         testing::Values("mixtral_bf16_window", "gpt_oss_bf16_window",
                                         "gpt_oss_fp32_odd"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace moesaic
