// config.json of the families with linear attention: defaults, which layers have it, where tensors
// are, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/config/kv_groups.h"
#include "core/config/model_config.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

ModelConfig ParseDelta(const std::string& json) { return ParseModelConfig(json, "config.json"); }

std::string Next(const std::string& keys = "") {
  return R"({"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next")" + keys + "}";
}

std::string Qwen35(const std::string& text_keys = "", const std::string& keys = "") {
  return R"({"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
      "vision_config": {"depth": 27}, "text_config": {"model_type": "qwen3_5_moe_text")" +
         text_keys + "}" + keys + "}";
}

void ExpectTheSpecs(const ModelConfig& c) {
  const GroupedQuerySpec& attention = c.attention();
  EXPECT_EQ(attention.heads, 16);
  EXPECT_EQ(attention.kv_heads, 2);
  EXPECT_EQ(attention.head_dim, 256);
  EXPECT_EQ(attention.rotary_dim, 64);
  EXPECT_TRUE(attention.output_gate);
  EXPECT_EQ(attention.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(attention.norm.plus_one);
  EXPECT_EQ(attention.projected_width(), (2 * 16 + 2 * 2) * 256);
  const DeltaNetSpec& delta = *c.FindMixer<DeltaNetSpec>();
  EXPECT_EQ(delta.key_heads, 16);
  EXPECT_EQ(delta.value_heads, 32);
  EXPECT_EQ(delta.key_dim, 128);
  EXPECT_EQ(delta.value_dim, 128);
  EXPECT_EQ(delta.conv_width, 4);
  EXPECT_EQ(delta.channels(), 8192);
  EXPECT_FALSE(delta.norm.plus_one);
  EXPECT_TRUE(c.final_norm.plus_one);
  EXPECT_TRUE(c.layer(0).norm.plus_one);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.expert_width(), 512);
  EXPECT_EQ(c.shared_width(), 512);
  EXPECT_TRUE(c.experts().shared_gate);
  EXPECT_EQ(c.experts().router.norm, RouterNorm::kSum);
  for (int64_t l = 0; l < c.num_layers(); ++l) {
    EXPECT_EQ(c.layer(l).has_attention(), l % 4 == 3) << l;
    EXPECT_EQ(KvGroupsOf(c).of_layer[static_cast<size_t>(l)], l % 4 == 3 ? 0 : KvGroups::kNone);
  }
}

TEST(DeltaNetConfigTest, DefaultsOfQwen3Next) {
  const ModelConfig c = ParseDelta(Next());
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.num_layers(), 48);
  EXPECT_EQ(c.num_attention_layers(), 12);
  EXPECT_EQ(c.NumMixers<DeltaNetSpec>(), 36);
  EXPECT_EQ(c.num_experts(), 512);
  EXPECT_EQ(c.top_k(), 10);
  EXPECT_EQ(c.num_sparse_layers(), 48);
  EXPECT_EQ(c.attention().rope.theta, 10000.0);
  ExpectTheSpecs(c);
  const ModelConfig other = ParseDelta(Next(R"(, "num_hidden_layers": 4, "mlp_only_layers": [1],
      "full_attention_interval": 2, "norm_topk_prob": false, "partial_rotary_factor": 0.5)"));
  EXPECT_EQ(other.num_attention_layers(), 2);
  EXPECT_FALSE(other.is_sparse(1));
  EXPECT_EQ(other.layer(1).dense_mlp().width, 5632);
  EXPECT_EQ(other.experts().router.norm, RouterNorm::kNone);
  EXPECT_EQ(other.attention().rotary_dim, 128);
}

TEST(DeltaNetConfigTest, DefaultsOfQwen35Moe) {
  const ModelConfig c = ParseDelta(Qwen35(R"(, "eos_token_id": 7, "rope_parameters": {
      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default",
      "mrope_section": [11, 11, 10], "mrope_interleaved": true})"));
  EXPECT_EQ(c.vocab_size, 248320);
  EXPECT_EQ(c.num_layers(), 40);
  EXPECT_EQ(c.num_attention_layers(), 10);
  EXPECT_EQ(c.num_experts(), 256);
  EXPECT_EQ(c.top_k(), 8);
  EXPECT_EQ(c.attention().rope.theta, 1e7);
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{7}));
  ExpectTheSpecs(c);
  // What the outer configuration says holds where the part for text says nothing, but for ties.
  const ModelConfig outer = ParseDelta(
      Qwen35(R"(, "tie_word_embeddings": false)",
             R"(, "dtype": "float32", "eos_token_id": [3, 4], "tie_word_embeddings": true)"));
  EXPECT_EQ(outer.checkpoint_dtype, DType::kF32);
  EXPECT_EQ(outer.eos_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_TRUE(outer.tie_word_embeddings);
  EXPECT_EQ(ParseDelta(Qwen35(R"(, "dtype": "float16")", R"(, "torch_dtype": "float32")"))
                .checkpoint_dtype,
            DType::kF16);
}

TEST(DeltaNetConfigTest, TensorsAreWhereTheCheckpointsHaveThem) {
  const ModelConfig next = ParseDelta(Next());
  // Of each key head a query, a key, and values and gates of its two value heads.
  const PlannedTensor gate = next.tensors.At(TensorSlot::kDeltaGate, 2);
  EXPECT_EQ(gate.name, "model.layers.2.linear_attn.in_proj_qkvz.weight");
  const auto* rows = gate.Find<EveryNthRow>();
  ASSERT_NE(rows, nullptr);
  EXPECT_EQ(rows->step, 768);
  EXPECT_EQ(rows->first, 512);
  EXPECT_EQ(rows->count, 256);
  const ModelConfig c = ParseDelta(Qwen35());
  EXPECT_EQ(c.tensors.At(TensorSlot::kEmbedding).name, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(c.tensors.At(TensorSlot::kHead).name, "lm_head.weight");
  EXPECT_EQ(c.tensors.At(TensorSlot::kDeltaGate, 0).name,
            "model.language_model.layers.0.linear_attn.in_proj_z.weight");
  const PlannedTensor up = c.tensors.At(TensorSlot::kExpertUp, 3, 9);
  EXPECT_EQ(up.name, "model.language_model.layers.3.mlp.experts.gate_up_proj");
  EXPECT_EQ(up.Find<StackOf>()->index, 9);
  EXPECT_EQ(up.Find<EveryNthRow>()->first, 512);
  EXPECT_EQ(up.Find<EveryNthRow>()->step, 1024);
  // The text alone, as transformers saves it.
  const ModelConfig text = ParseDelta(R"({"architectures": ["Qwen3_5MoeForCausalLM"],
      "model_type": "qwen3_5_moe_text"})");
  EXPECT_EQ(text.num_layers(), c.num_layers());
  EXPECT_EQ(text.tensors.At(TensorSlot::kDeltaGate, 0).name,
            "model.layers.0.linear_attn.in_proj_z.weight");
  EXPECT_EQ(text.tensors.At(TensorSlot::kExpertUp, 3, 9).name,
            "model.layers.3.mlp.experts.9.up_proj.weight");
  // In fp8 an expert's matrices are tensors of their own.
  const ModelConfig fp8 = ParseDelta(Qwen35("", R"(, "quantization_config": {"quant_method": "fp8",
      "weight_block_size": [128, 128]})"));
  EXPECT_EQ(fp8.tensors.At(TensorSlot::kExpertUp, 3, 9).name,
            "model.language_model.layers.3.mlp.experts.9.up_proj.weight");
}

TEST(DeltaNetConfigTest, RefusalsNameTheKey) {
  struct Case {
    std::string json;
    std::string part;
  };
  const std::vector<Case> cases = {
      {Next(R"(, "linear_num_value_heads": 24)"), "linear_num_value_heads"},
      {Next(R"(, "linear_key_head_dim": 0)"), "linear_key_head_dim"},
      {Next(R"(, "linear_conv_kernel_dim": 1)"), "linear_conv_kernel_dim"},
      {Next(R"(, "linear_conv_kernel_dim": 5)"), "convolution over 5"},
      {Next(R"(, "layer_types": ["linear_attention"])"), "layer_types"},
      {Next(R"(, "num_hidden_layers": 2, "layer_types": ["linear_attention", "x"])"),
       "linear_attention"},
      {Next(R"(, "num_hidden_layers": 3)"), "no layer has softmax attention"},
      {Next(R"(, "attention_bias": true)"), "attention_bias"},
      {Qwen35(R"(, "hidden_size": "x")"), "text_config.hidden_size"},
      {R"({"model_type": "qwen3_5_moe"})", "text_config"},
      {R"({"model_type": "qwen3_5_moe", "text_config": 3})", "text_config"},
  };
  for (const Case& test : cases) {
    const Error error = Caught([&] { ParseDelta(test.json); });
    EXPECT_NE(std::string(error.what()).find(test.part), std::string::npos)
        << test.json << ": " << error.what();
  }
}

}  // namespace
}  // namespace moesaic
