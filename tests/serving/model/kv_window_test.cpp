// Blocks that no later token attends to are given back while a sequence runs, and hold something
// else soon after: no bit of the sequence changes, and what it holds stays bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cache/kv_manager.h"
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
  std::vector<std::vector<float>> Run(const std::vector<int64_t>& windows, int64_t num_blocks,
                                      bool noise) {
    KvManager kv({windows, kKvBlockTokens, kAttentionChunkTokens}, num_blocks);
    const auto vocab = static_cast<int>(harness_.config().vocab_size);
    const std::vector<int32_t> tokens = PromptOf(4, kPrompt + kSteps, vocab);
    std::vector<std::vector<float>> logits;
    SequenceBlocks blocks;
    for (int64_t start = 0; start < kPrompt + kSteps;) {
      const int64_t count = start < kPrompt ? std::min(kChunk, kPrompt - start) : 1;
      EXPECT_TRUE(kv.Grow(blocks, start + count));
      Forward({tokens.begin() + start, tokens.begin() + start + count}, start, blocks);
      const auto last = static_cast<int32_t>(count - 1);
      harness_.model().Logits({&last, 1}, logits.emplace_back(static_cast<size_t>(vocab)).data());
      start += count;
      kv.GiveBackBehind(blocks, start);
      most_used_ = std::max(most_used_, kv.pool().used_blocks());
      if (!noise) continue;
      SequenceBlocks other;
      EXPECT_TRUE(kv.Grow(other, kNoiseTokens));
      Forward(PromptOf(static_cast<int>(start), kNoiseTokens, vocab), 0, other);
      kv.Release(other);
    }
    kv.Release(blocks);
    return logits;
  }

  // Else a run could find what the last one left in blocks that are not its own.
  void Overwrite(size_t groups) {
    const auto blocks = static_cast<int32_t>(kBlocks * static_cast<int64_t>(groups));
    for (int32_t block = 0; block < blocks; ++block) {
      SequenceBlocks other;
      other.tables.assign(groups, {.blocks = {block}});
      Forward(PromptOf(1000 + block, kKvBlockTokens, 100), 0, other);
    }
  }

  ModelHarness harness_;
  int64_t most_used_ = 0;
};

TEST_P(KvWindowTest, GivenBackBlocksChangeNoBit) {
  const std::vector<int64_t> windows = KvGroupsOf(harness_.config()).windows;
  constexpr int64_t kWhole = (kPrompt + kSteps + kKvBlockTokens - 1) / kKvBlockTokens;
  int64_t num_blocks = 0;
  bool any_window = false;
  for (const int64_t window : windows) {
    // Room for what the window reaches and the other sequence, no more.
    const int64_t bounded =
        (window + kAttentionChunkTokens + kChunk + kNoiseTokens) / kKvBlockTokens + 2;
    ASSERT_LT(bounded, kWhole);
    num_blocks += window > 0 ? bounded : kWhole + kNoiseTokens / kKvBlockTokens + 1;
    any_window = any_window || window > 0;
  }
  ASSERT_TRUE(any_window);
  const auto groups = std::ssize(windows);
  const std::vector<std::vector<float>> expected =
      Run(std::vector<int64_t>(windows.size(), 0), kBlocks * groups, false);
  EXPECT_EQ(most_used_, kWhole * groups);
  most_used_ = 0;
  Overwrite(windows.size());
  const std::vector<std::vector<float>> seen = Run(windows, num_blocks, true);
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t step = 0; step < seen.size(); ++step) {
    ASSERT_TRUE(seen[step] == expected[step]) << "step " << step;
  }
  EXPECT_LE(most_used_, num_blocks - groups * (kNoiseTokens / kKvBlockTokens));
}

// A window in every layer, in half of them, and in two layers of three, which are groups of their
// own.
INSTANTIATE_TEST_SUITE_P(Models, KvWindowTest,
                         testing::Values("mixtral_bf16_window", "gpt_oss_bf16_window",
                                         "gpt_oss_fp32_odd"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace moesaic
