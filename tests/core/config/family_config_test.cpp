// What Granite MoE's, DBRX's and Arctic's config.json say: defaults, names of their own, layers,
// and where their tensors are.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/config/model_config.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

ModelConfig FamilyOf(const std::string& type, const std::string& keys = "") {
  return ParseModelConfig(R"({"model_type": ")" + type + "\"" + keys + "}", "dir/config.json");
}

void ExpectFamilyRefused(const std::string& type, const std::string& keys, ErrorKind kind,
                         const std::string& named) {
  const Error error = Caught([&] { FamilyOf(type, keys); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(Contains(error, "dir/config.json") && Contains(error, named)) << error.what();
}

// The defaults of transformers 5.23.
TEST(FamilyConfigTest, GraniteMoe) {
  const ModelConfig c = FamilyOf("granitemoe");
  EXPECT_EQ(c.architecture, "GraniteMoeForCausalLM");
  EXPECT_EQ(c.num_layers(), 32);
  EXPECT_EQ(c.num_sparse_layers(), 32);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.attention().heads, 32);
  EXPECT_EQ(c.attention().kv_heads, 32);
  EXPECT_EQ(c.attention().scale, 1.0);  // whatever the size of heads
  EXPECT_FALSE(c.attention().output_bias);
  EXPECT_EQ(c.expert_width(), 11008);
  EXPECT_EQ(c.shared_width(), 0);
  EXPECT_EQ(c.num_experts(), 8);
  EXPECT_EQ(c.top_k(), 2);
  EXPECT_EQ(c.embedding_scale, 1.0);
  EXPECT_EQ(c.logit_divisor, 1.0);
  EXPECT_FALSE(c.tie_word_embeddings);
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.score, ScoreFunction::kLogit);
  EXPECT_EQ(router.norm, RouterNorm::kSoftmax);
  EXPECT_EQ(router.scale, 1.0);

  const ModelConfig some =
      FamilyOf("granitemoe", R"(, "embedding_multiplier": 12, "attention_bias": true,
      "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 6)");
  EXPECT_EQ(some.embedding_scale, 12.0);
  EXPECT_EQ(some.logit_divisor, 6.0);
  EXPECT_EQ(some.layer(31).residual_scale, 0.22);
  EXPECT_EQ(some.experts().router.scale, 0.22);
  EXPECT_EQ(some.attention().scale, 0.015625);
  EXPECT_TRUE(some.attention().qkv_bias && some.attention().output_bias);
  const PlannedTensor up = some.tensors.At(TensorSlot::kExpertUp, 3, 5);
  EXPECT_EQ(up.name, "model.layers.3.block_sparse_moe.input_linear.weight");
  EXPECT_EQ(up.Find<StackOf>()->index, 5);
  EXPECT_EQ(up.Find<EveryNthRow>()->first, 11008);

  for (const char* const key :
       {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    ExpectFamilyRefused("granitemoe", std::string(", \"") + key + "\": 0", ErrorKind::kCorrupt,
                        key);
  }
}

TEST(FamilyConfigTest, GraniteMoeWithASharedMlp) {
  const ModelConfig c = FamilyOf("granitemoeshared",
                                 R"(, "shared_intermediate_size": 40, "residual_multiplier": 0.5)");
  EXPECT_EQ(c.architecture, "GraniteMoeSharedForCausalLM");
  EXPECT_EQ(c.shared_width(), 40);
  EXPECT_FALSE(c.experts().shared_gate);
  const PlannedTensor up = c.tensors.At(TensorSlot::kSharedMlpUp, 2);
  EXPECT_EQ(up.name, "model.layers.2.shared_mlp.input_linear.weight");
  EXPECT_EQ(up.Find<EveryNthRow>()->step, 80);
  EXPECT_EQ(up.Find<EveryNthRow>()->first, 40);
  EXPECT_EQ(FamilyOf("granitemoeshared").shared_width(), 0);
}

// The defaults of transformers 5.23.
TEST(FamilyConfigTest, Dbrx) {
  const ModelConfig c = FamilyOf("dbrx");
  EXPECT_EQ(c.num_layers(), 24);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.attention().heads, 16);
  EXPECT_EQ(c.attention().kv_heads, 1);
  EXPECT_EQ(c.attention().clip_qkv, 0.0);
  EXPECT_EQ(c.rope().theta, 1e4);
  EXPECT_EQ(c.num_experts(), 4);
  EXPECT_EQ(c.top_k(), 1);
  EXPECT_EQ(c.expert_width(), 3584);
  EXPECT_EQ(c.experts().router.norm, RouterNorm::kSum);
  for (const NormSpec& norm : {c.final_norm, c.layer(0).norm}) {
    EXPECT_TRUE(norm.centred);
    EXPECT_EQ(norm.eps, 1e-5);
  }

  const ModelConfig some = FamilyOf("dbrx", R"(, "d_model": 96, "n_heads": 6, "n_layers": 2,
      "max_seq_len": 77, "attn_config": {"clip_qkv": 8, "kv_n_heads": 2, "rope_theta": 500000},
      "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 16, "moe_top_k": 4,
                     "moe_normalize_expert_weights": null, "ffn_act_fn": {"name": "silu"}})");
  EXPECT_EQ(some.hidden_size, 96);
  EXPECT_EQ(some.num_layers(), 2);
  EXPECT_EQ(some.max_position, 77);
  EXPECT_EQ(some.attention().head_dim, 16);
  EXPECT_EQ(some.attention().kv_heads, 2);
  EXPECT_EQ(some.attention().clip_qkv, 8.0);
  EXPECT_EQ(some.rope().theta, 5e5);
  EXPECT_EQ(some.top_k(), 4);
  EXPECT_EQ(some.experts().router.norm, RouterNorm::kNone);
  const PlannedTensor key = some.tensors.At(TensorSlot::kK, 1);
  EXPECT_EQ(key.name, "transformer.blocks.1.norm_attn_norm.attn.Wqkv.weight");
  EXPECT_EQ(key.Find<EveryNthRow>()->step, 96 + 2 * 32);
  EXPECT_EQ(key.Find<EveryNthRow>()->first, 96);
  EXPECT_EQ(key.Find<EveryNthRow>()->count, 32);
  const PlannedTensor down = some.tensors.At(TensorSlot::kExpertDown, 1, 7);
  EXPECT_EQ(down.name, "transformer.blocks.1.ffn.experts.mlp.w2");
  EXPECT_TRUE(down.Find<StackOf>()->one_below);
  EXPECT_EQ(down.Find<StackOf>()->index, 7);
  EXPECT_NE(down.Find<Transposed>(), nullptr);

  // transformers 5 has the base at the top.
  EXPECT_EQ(
      FamilyOf("dbrx", R"(, "rope_theta": 7e3, "attn_config": {"rope_theta": 5e5})").rope().theta,
      7e3);
  ExpectFamilyRefused("dbrx", R"(, "ffn_config": {"moe_normalize_expert_weights": 2})",
                      ErrorKind::kUnsupported, "ffn_config.moe_normalize_expert_weights");
  ExpectFamilyRefused("dbrx", R"(, "ffn_config": {"ffn_act_fn": {"name": "gelu"}})",
                      ErrorKind::kUnsupported, "gelu");
  ExpectFamilyRefused("dbrx", R"(, "ffn_config": 3)", ErrorKind::kCorrupt, "ffn_config");
  ExpectFamilyRefused("dbrx", R"(, "attn_config": {"clip_qkv": -1})", ErrorKind::kCorrupt,
                      "attn_config.clip_qkv");
}

// The defaults of the checkpoint's configuration_arctic.py.
TEST(FamilyConfigTest, Arctic) {
  const ModelConfig c = FamilyOf("arctic");
  EXPECT_EQ(c.num_layers(), 32);
  EXPECT_EQ(c.num_sparse_layers(), 16);
  EXPECT_FALSE(c.is_sparse(0));
  EXPECT_TRUE(c.is_sparse(1));
  EXPECT_EQ(c.attention().kv_heads, 32);
  EXPECT_EQ(c.rope().theta, 1e6);
  EXPECT_EQ(c.top_k(), 1);
  EXPECT_EQ(c.dense_width(), 14336);
  EXPECT_FALSE(c.experts_read_input());
  EXPECT_FALSE(c.layer(1).has_mlp_norm());
  EXPECT_EQ(c.shared_width(), 0);

  const ModelConfig some = FamilyOf("arctic", R"(, "moe_layer_frequency": 1, "hidden_size": 64,
      "parallel_attn_mlp_res": true, "num_hidden_layers": 3, "sliding_window": 9)");
  EXPECT_TRUE(some.experts_read_input());
  EXPECT_EQ(some.num_sparse_layers(), 3);
  EXPECT_TRUE(some.layer(0).routes_first() && some.layer(0).has_mlp_norm());
  EXPECT_EQ(some.shared_width(), 64);
  EXPECT_EQ(some.attention().window, 9);
  EXPECT_EQ(some.experts().router.norm, RouterNorm::kSum);
  EXPECT_EQ(some.tensors.At(TensorSlot::kMlpNorm, 2).name,
            "model.layers.2.residual_layernorm.weight");
  EXPECT_EQ(some.tensors.At(TensorSlot::kSharedMlpDown, 2).name,
            "model.layers.2.residual_mlp.w2.weight");
  EXPECT_EQ(some.tensors.At(TensorSlot::kExpertUp, 2, 1).name,
            "model.layers.2.block_sparse_moe.experts.1.w3.weight");
  EXPECT_EQ(some.tensors.At(TensorSlot::kMlpGate, 2).name,
            "model.layers.2.block_sparse_moe.mlp.w1.weight");

  // The checkpoint's code reads the first of two keys.
  EXPECT_TRUE(FamilyOf("arctic", R"(, "use_residual": true)").experts_read_input());
  EXPECT_FALSE(FamilyOf("arctic", R"(, "use_residual": true, "parallel_attn_mlp_res": false)")
                   .experts_read_input());
  ExpectFamilyRefused("arctic", R"(, "quantization": {"q_bits": 8})", ErrorKind::kUnsupported,
                      "quantization");
  ExpectFamilyRefused("arctic", R"(, "num_hidden_layers": 1)", ErrorKind::kUnsupported,
                      "no layer has experts");
}

}  // namespace
}  // namespace moesaic
