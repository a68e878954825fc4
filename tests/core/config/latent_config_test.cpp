// Families with latent attention, against the values that transformers 5.23 gives.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/kv_groups.h"
#include "core/config/model_config.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

ModelConfig ParseOf(const std::string& family, const std::string& keys) {
  return ParseModelConfig(R"({"architectures": [")" + family + R"(ForCausalLM"])" + keys + "}",
                          "dir/config.json");
}
ModelConfig V2(const std::string& keys = "") {
  return ParseOf("DeepseekV2", R"(, "num_experts_per_tok": 6)" + keys);
}
ModelConfig V3(const std::string& keys = "") { return ParseOf("DeepseekV3", keys); }
ModelConfig GlmLite(const std::string& keys = "") { return ParseOf("Glm4MoeLite", keys); }

const LatentSpec& LatentOf(const ModelConfig& config) {
  return std::get<LatentSpec>(config.layers.front().mixer);
}

std::string Refusal(const std::string& family, const std::string& keys, ErrorKind kind) {
  const Error error = Caught([&] { ParseOf(family, keys); });
  EXPECT_EQ(error.kind(), kind) << keys;
  return error.what();
}

TEST(LatentConfigTest, DefaultsOfDeepseekV2) {
  const ModelConfig c = V2();
  EXPECT_EQ(c.vocab_size, 102400);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.num_layers(), 32);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.num_sparse_layers(), 32);
  EXPECT_EQ(c.expert_width(), 1407);
  EXPECT_EQ(c.shared_width(), 2 * 1407);
  const LatentSpec& latent = LatentOf(c);
  EXPECT_EQ(latent.heads, 32);
  EXPECT_EQ(latent.q_rank, 1536);
  EXPECT_EQ(latent.kv_rank, 512);
  EXPECT_EQ(latent.nope_dim, 128);
  EXPECT_EQ(latent.rope_dim, 64);
  EXPECT_EQ(latent.value_dim, 128);
  EXPECT_EQ(latent.norm.eps, 1e-6);
  EXPECT_DOUBLE_EQ(latent.scale, 1 / std::sqrt(192.0));
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.experts, 64);
  EXPECT_EQ(router.top_k, 6);
  EXPECT_EQ(router.score, ScoreFunction::kSoftmax);
  EXPECT_FALSE(router.correction_bias);
  EXPECT_EQ(router.num_groups, 1);
  EXPECT_EQ(router.norm, RouterNorm::kNone);
  EXPECT_EQ(router.scale, 1.0);
}

TEST(LatentConfigTest, KeysOfDeepseekV2) {
  const ModelConfig c = V2(R"(, "q_lora_rank": null, "topk_method": "group_limited_greedy",
      "n_group": 8, "topk_group": 3, "routed_scaling_factor": 16.0, "first_k_dense_replace": 1,
      "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                       "mscale": 0.707, "mscale_all_dim": 0.707})");
  const LatentSpec& latent = LatentOf(c);
  EXPECT_EQ(latent.q_rank, 0);
  const double m = 0.1 * 0.707 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(latent.scale, m * m / std::sqrt(192.0));
  EXPECT_FALSE(c.is_sparse(0));
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.num_groups, 8);
  EXPECT_EQ(router.groups_kept, 3);
  EXPECT_EQ(router.group_rule, GroupRule::kMax);
  EXPECT_EQ(router.scale, 16.0);
  // Without mscale_all_dim yarn is in the rotations alone.
  EXPECT_DOUBLE_EQ(LatentOf(V2(R"(, "rope_scaling": {"type": "yarn", "factor": 40})")).scale,
                   1 / std::sqrt(192.0));
  // Groups say nothing to the greedy choice.
  EXPECT_EQ(V2(R"(, "n_group": 8, "topk_group": 3)").experts().router.num_groups, 1);
}

TEST(LatentConfigTest, DefaultsOfDeepseekV3) {
  const ModelConfig c = V3();
  EXPECT_EQ(c.num_layers(), 61);
  EXPECT_EQ(c.num_sparse_layers(), 58);
  EXPECT_EQ(c.dense_width(), 18432);
  EXPECT_EQ(c.shared_width(), 2048);
  EXPECT_EQ(LatentOf(c).heads, 128);
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.experts, 256);
  EXPECT_EQ(router.top_k, 8);
  EXPECT_EQ(router.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(router.correction_bias);
  EXPECT_EQ(router.num_groups, 8);
  EXPECT_EQ(router.groups_kept, 4);
  EXPECT_EQ(router.group_rule, GroupRule::kTopTwoSum);
  EXPECT_EQ(router.norm, RouterNorm::kSumPlusEps);
  EXPECT_EQ(router.scale, 2.5);
  EXPECT_EQ(c.prediction_layers, 0);
  EXPECT_EQ(V3(R"(, "num_nextn_predict_layers": 1)").prediction_layers, 1);
}

// All of DeepSeek-V3 but that an indexer chooses positions.
TEST(LatentConfigTest, DefaultsOfDeepseekV32) {
  const ModelConfig c = ParseOf("DeepseekV32", "");
  EXPECT_EQ(c.num_layers(), 61);
  EXPECT_EQ(c.num_sparse_layers(), 58);
  EXPECT_EQ(c.max_position, 163840);
  EXPECT_EQ(LatentOf(c).top_k, 2048);
  EXPECT_EQ(LatentOf(c).indexer,
            (IndexerSpec{.heads = 64, .dim = 128, .rope_form = RopeForm::kHalf}));
  EXPECT_EQ(std::get<LatentSpec>(c.layers.back().mixer).indexer, LatentOf(c).indexer);
  EXPECT_EQ(c.tensors.At(TensorSlot::kIndexHeads, 7).name,
            "model.layers.7.self_attn.indexer.weights_proj.weight");
  EXPECT_EQ(LatentOf(V3()).top_k, 0);
  EXPECT_EQ(LatentOf(c).heads, 128);
  EXPECT_EQ(LatentOf(c).q_rank, 1536);
  EXPECT_EQ(c.dense_width(), 18432);
  EXPECT_EQ(c.experts().router.groups_kept, 4);
  EXPECT_EQ(LatentOf(ParseOf("DeepseekV32", R"(, "index_topk": 64)")).top_k, 64);
  // Says nothing here, as in transformers.
  const ModelConfig turns = ParseOf("DeepseekV32", R"(, "index_topk_freq": 4)");
  EXPECT_EQ(std::get<LatentSpec>(turns.layers[4].mixer).indexer.heads, 64);
  Refusal("DeepseekV32", R"(, "index_head_dim": 63)", ErrorKind::kCorrupt);
  Refusal("DeepseekV32", R"(, "q_lora_rank": null)", ErrorKind::kUnsupported);
  Refusal("DeepseekV32", R"(, "index_topk": 0)", ErrorKind::kCorrupt);
  Refusal("DeepseekV32", R"(, "mlp_layer_types": ["dense"])", ErrorKind::kCorrupt);
}

TEST(LatentConfigTest, DefaultsOfGlm5) {
  const ModelConfig c = ParseOf("GlmMoeDsa", "");
  EXPECT_EQ(c.model_type, "glm_moe_dsa");
  EXPECT_EQ(c.num_layers(), 78);
  EXPECT_EQ(c.num_sparse_layers(), 75);
  EXPECT_EQ(c.hidden_size, 6144);
  EXPECT_EQ(LatentOf(c).top_k, 2048);
  EXPECT_EQ(LatentOf(c).indexer,
            (IndexerSpec{.heads = 32, .dim = 128, .rope_form = RopeForm::kInterleaved}));
  EXPECT_EQ(LatentOf(c).value_dim, 256);
  EXPECT_EQ(LatentOf(c).q_rank, 2048);
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  EXPECT_EQ(c.experts().router.num_groups, 1);
  EXPECT_EQ(c.experts().router.scale, 2.5);
  EXPECT_EQ(ParseOf("GlmMoeDsa", R"(, "first_k_dense_replace": 1)").num_sparse_layers(), 77);
}

// As transformers fills in indexer_types.
TEST(LatentConfigTest, LayersOfGlm52ShareIndexers) {
  const auto full = [](const std::string& keys) {
    std::string types;
    for (const LayerSpec& layer :
         ParseOf("GlmMoeDsa", R"(, "num_hidden_layers": 8)" + keys).layers) {
      types += std::get<LatentSpec>(layer.mixer).indexer.heads > 0 ? 'F' : 'S';
      EXPECT_EQ(std::get<LatentSpec>(layer.mixer).top_k, 2048);
    }
    return types;
  };
  EXPECT_EQ(full(""), "FFFFFFFF");
  EXPECT_EQ(full(R"(, "index_topk_freq": 4)"), "FFSSSFSS");
  EXPECT_EQ(full(R"(, "index_topk_freq": 3, "index_skip_topk_offset": 1)"), "FSSFSSFS");
  EXPECT_EQ(full(R"(, "index_topk_freq": 0)"), "FFFFFFFF");
  EXPECT_EQ(full(R"(, "index_topk_pattern": "FSSFSSFSF", "index_topk_freq": 2)"), "FSSFSSFS");
  EXPECT_EQ(full(R"(, "indexer_types": ["full", "shared", "full", "shared", "shared", "full",
      "full", "shared"], "index_topk_pattern": "FFFFFFFF")"),
            "FSFSSFFS");
  const std::string few = R"(, "num_hidden_layers": 3, "first_k_dense_replace": 1)";
  for (const char* const keys :
       {R"(, "indexer_types": ["full", "shared"])", R"(, "index_topk_pattern": "FS")",
        R"(, "indexer_types": ["shared", "full", "full"])", R"(, "index_topk_pattern": 3)",
        R"(, "index_topk_freq": 4, "index_skip_topk_offset": -1)"}) {
    Refusal("GlmMoeDsa", few + keys, ErrorKind::kCorrupt);
  }
  for (const char* const keys :
       {R"(, "indexer_types": ["full", "half", "full"])", R"(, "index_topk_pattern": "FXF")"}) {
    Refusal("GlmMoeDsa", few + keys, ErrorKind::kUnsupported);
  }
}

TEST(LatentConfigTest, KimiK2IsDeepseekV3UnderAnotherName) {
  const ModelConfig c = V3(R"(, "model_type": "kimi_k2", "n_group": 1, "topk_group": 1)");
  EXPECT_EQ(c.experts().router.num_groups, 1);
  EXPECT_EQ(ParseModelConfig(R"({"model_type": "kimi_k2"})", "config.json").num_layers(), 61);
  Refusal("DeepseekV2", R"(, "num_experts_per_tok": 6, "model_type": "kimi_k2")",
          ErrorKind::kCorrupt);
}

TEST(LatentConfigTest, KimiK25IsTheTextOfAModelThatSees) {
  const ModelConfig c = ParseModelConfig(R"({"architectures": ["KimiK25ForConditionalGeneration"],
      "model_type": "kimi_k25", "vision_config": {}, "eos_token_id": 5, "text_config":
      {"model_type": "kimi_k2", "num_hidden_layers": 3, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
       "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
           "ignore": ["lm_head", "re:.*self_attn.*"], "config_groups": {"group_0": {"weights":
               {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}}}})",
                                         "config.json");
  EXPECT_EQ(c.model_type, "kimi_k25");
  EXPECT_EQ(c.num_layers(), 3);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{5});
  EXPECT_EQ(c.tensors.At(TensorSlot::kHead).name, "language_model.lm_head.weight");
  EXPECT_EQ(c.tensors.At(TensorSlot::kEmbedding).name, "language_model.model.embed_tokens.weight");
  EXPECT_EQ(c.tensors.At(TensorSlot::kRouterCorrection, 2).name,
            "language_model.model.layers.2.mlp.gate.e_score_correction_bias");
  const PlannedTensor up = c.tensors.At(TensorSlot::kExpertUp, 1, 9);
  EXPECT_EQ(up.name, "language_model.model.layers.1.mlp.experts.9.up_proj.weight");
  EXPECT_EQ(*up.Find<PackedInt4>(), PackedInt4{32});
  EXPECT_FALSE(c.IsPlainModule(up.name));
  EXPECT_TRUE(c.IsPlainModule(c.tensors.At(TensorSlot::kQ, 1).name));
  const Error error = Caught([] { ParseModelConfig(R"({"model_type": "kimi_k25"})", "f"); });
  EXPECT_TRUE(Contains(error, "text_config")) << error.what();
}

TEST(LatentConfigTest, DefaultsOfGlm4MoeLite) {
  const ModelConfig c = GlmLite();
  EXPECT_EQ(c.num_layers(), 47);
  EXPECT_EQ(c.num_sparse_layers(), 46);
  EXPECT_FALSE(c.is_sparse(0));
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  const LatentSpec& latent = LatentOf(c);
  EXPECT_EQ(latent.heads, 20);
  EXPECT_EQ(latent.q_rank, 768);
  EXPECT_EQ(latent.nope_dim, 192);
  EXPECT_EQ(latent.value_dim, 256);
  EXPECT_EQ(latent.norm.eps, 1e-6);
  EXPECT_EQ(c.experts().router.scale, 1.8);
  const ModelConfig listed =
      GlmLite(R"(, "num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"])");
  EXPECT_TRUE(listed.is_sparse(0));
  EXPECT_FALSE(listed.is_sparse(1));
  EXPECT_EQ(GlmLite(R"(, "first_k_dense_replace": 3)").num_sparse_layers(), 46);  // says nothing
  Refusal("Glm4MoeLite", R"(, "num_hidden_layers": 2, "mlp_layer_types": ["sparse"])",
          ErrorKind::kCorrupt);
}

TEST(LatentConfigTest, RotatedRowsAreInPairsUnlessTheConfigurationSaysOtherwise) {
  const auto pairs_of = [](const ModelConfig& c, TensorSlot slot) {
    const PlannedTensor tensor = c.tensors.At(slot, 1);
    const auto* const pairs = tensor.Find<RowsInPairs>();
    return pairs == nullptr ? std::vector<int64_t>{}
                            : std::vector<int64_t>{pairs->head_rows, pairs->passed};
  };
  EXPECT_EQ(pairs_of(V3(), TensorSlot::kQ), (std::vector<int64_t>{192, 128}));
  EXPECT_EQ(pairs_of(V3(), TensorSlot::kKvDown), (std::vector<int64_t>{576, 512}));
  EXPECT_TRUE(pairs_of(V3(R"(, "rope_interleave": false)"), TensorSlot::kQ).empty());
  EXPECT_EQ(V3().tensors.At(TensorSlot::kQ, 1).name, "model.layers.1.self_attn.q_b_proj.weight");
  EXPECT_EQ(V2(R"(, "q_lora_rank": null)").tensors.At(TensorSlot::kQ, 1).name,
            "model.layers.1.self_attn.q_proj.weight");
}

TEST(LatentConfigTest, WhatIsNotServedIsRefusedByName) {
  const auto names = [](const std::string& family, const std::string& keys, const char* key) {
    EXPECT_NE(Refusal(family, keys, ErrorKind::kUnsupported).find(key), std::string::npos) << keys;
  };
  const std::string k = R"(, "num_experts_per_tok": 6)";
  names("DeepseekV2", k + R"(, "norm_topk_prob": true)", "norm_topk_prob");
  names("DeepseekV2", k + R"(, "topk_method": "noaux_tc")", "topk_method");
  names("DeepseekV2", k + R"(, "moe_layer_freq": 2)", "moe_layer_freq");
  names("DeepseekV2", k + R"(, "num_key_value_heads": 8)", "num_key_value_heads");
  names("DeepseekV3", R"(, "attention_bias": true)", "attention_bias");
  names("DeepseekV3", R"(, "scoring_func": "softmax")", "scoring_func");
  EXPECT_NE(Refusal("DeepseekV2", "", ErrorKind::kCorrupt).find("num_experts_per_tok"),
            std::string::npos);
}

TEST(LatentConfigTest, AllLayersHaveOneGroupOfBlocks) {
  const KvGroups groups = KvGroupsOf(V3());
  EXPECT_EQ(groups.windows, std::vector<int64_t>{0});
  EXPECT_EQ(groups.index.back(), 60);
  EXPECT_EQ(groups.layers_of_block, 61);
}

}  // namespace
}  // namespace moesaic
