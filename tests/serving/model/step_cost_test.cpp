#include "serving/model/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace moesaic {
namespace {

// The shape of scripts/make_bench_model.py.
ModelConfig BenchModel(const std::string& more = "") {
  return ParseModelConfig(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
      "torch_dtype": "bfloat16", "hidden_size": 1024, "num_hidden_layers": 16, "num_experts": 64,
      "num_experts_per_tok": 8, "moe_intermediate_size": 512, "intermediate_size": 4096,
      "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
      "max_position_embeddings": 8192, "rope_theta": 1000000.0)" +
                              more + "}",
                          "config.json");
}

constexpr uint64_t kExpertBytes = 3 * 1024 * 512 * 2;

StepWork OneToken(const StepCost& cost, int64_t context) {
  StepWork work;
  work.steps = work.tokens = work.head_steps = work.logit_rows = 1;
  work.experts = 16 * 8;
  work.positions_read = work.positions_attended = cost.Positions(context);
  return work;
}

TEST(StepCostTest, OneDecodedToken) {
  const StepCost cost =
      StepCostOf(BenchModel(), WeightType::kBf16, WeightType::kBf16, kExpertBytes);
  // Counted by hand: QKV, output and router of 16 layers; 2 f32 norms of 1024 and 2 of 64 in each;
  // the final norm.
  EXPECT_EQ(cost.dense_bytes,
            16 * (2 * 1024 * (1536 + 1024 + 64) + 4 * (2 * 1024 + 2 * 64)) + 4 * 1024);
  EXPECT_EQ(cost.head_bytes, 2 * 32000 * 1024);
  EXPECT_EQ(cost.position_bytes, 2 * 4 * 64 * 2);
  const StepWork work = OneToken(cost, 100);
  EXPECT_DOUBLE_EQ(cost.Bytes(work), static_cast<double>(cost.dense_bytes + cost.head_bytes +
                                                         128 * kExpertBytes + 1600 * 1024));
  EXPECT_DOUBLE_EQ(cost.Flop(work),
                   2.0 * (16.0 * (1024 * (1536 + 1024 + 64) + 8 * 3 * 1024 * 512) + 32000 * 1024) +
                       1600.0 * 4 * 16 * 64);
}

TEST(StepCostTest, TiedEmbeddingIsReadAsHead) {
  const StepCost apart = StepCostOf(BenchModel(), WeightType::kBf16, WeightType::kBf16, 1);
  const StepCost tied = StepCostOf(BenchModel(R"(, "tie_word_embeddings": true)"),
                                   WeightType::kBf16, WeightType::kBf16, 1);
  EXPECT_EQ(tied.dense_bytes, apart.dense_bytes);
  EXPECT_EQ(tied.head_bytes, apart.head_bytes);
}

TEST(StepCostTest, SlidingWindowsBoundWhatIsRead) {
  ModelConfig config = BenchModel();
  for (size_t layer = 0; layer < 4; ++layer) {
    std::get<GroupedQuerySpec>(config.layers[layer].mixer).window = 128;
  }
  const StepCost cost = StepCostOf(config, WeightType::kBf16, WeightType::kBf16, 1);
  EXPECT_EQ(cost.Positions(100), 16 * 100);
  EXPECT_EQ(cost.Positions(1000), 12 * 1000 + 4 * 128);
}

}  // namespace
}  // namespace moesaic
