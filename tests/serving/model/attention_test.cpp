// What attention writes, whoever else attends.

#include <gtest/gtest.h>

#include <vector>

#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

// Three rows and three KV heads on one thread make tasks of two heads, so that each row's second
// task has one head only. The rows behind are attended first: what a task wrote beyond its own row
// would stay there.
TEST(AttentionTest, HeadsThatDoNotFillATaskLeaveOtherRowsAlone) {
  ModelHarness harness(FixtureModel("olmoe_fp32_rope_parameters"), {});
  ASSERT_EQ(harness.config().attention().kv_heads, 3);
  ASSERT_EQ(harness.pool().threads(), 1);
  constexpr int64_t kRows = 6;
  constexpr int64_t kContext = 5;
  const int vocab = static_cast<int>(harness.config().vocab_size);
  std::vector<ModelHarness::Sequence> sequences;
  std::vector<SequenceSlice> slices;
  for (int64_t row = 0; row < kRows; ++row) {
    sequences.push_back(harness.NewSequence(kContext + 1));
    harness.Prefill(sequences.back(), PromptOf(static_cast<int>(row), kContext, vocab), kContext);
  }
  for (int64_t row = 0; row < kRows; ++row) {
    SequenceSlice slice;
    slice.first_row = row;
    slice.num_tokens = 1;
    slice.start_position = kContext;
    slice.blocks = sequences[static_cast<size_t>(row)].blocks;
    slices.push_back(slice);
  }
  const std::vector<int32_t> tokens = PromptOf(9, kRows, vocab);
  Model& model = harness.model();
  const auto attention = [&](const std::vector<SliceRange>& order) {
    model.BeginPass({tokens, slices});
    model.PreAttention(0, {0, kRows}, harness.pool());
    for (const SliceRange range : order) model.Attend(0, range, harness.pool());
    const int64_t width = harness.config().attention().q_width();
    std::vector<float> out;
    for (int64_t row = 0; row < kRows; ++row) {
      const DensePart::MixerRows at = model.mixer_rows();
      const auto* const values = reinterpret_cast<const float*>(
          at.mixed + static_cast<uint64_t>(row) * at.mixed_row_bytes);
      out.insert(out.end(), values, values + width);
    }
    return out;
  };
  const std::vector<float> one_by_one = attention({{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}});
  EXPECT_EQ(attention({{3, 6}, {0, 3}}), one_by_one);
}

}  // namespace
}  // namespace moesaic
