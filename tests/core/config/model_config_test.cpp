#include "core/config/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/kv_groups.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

ModelConfig Parse(const std::string& json) { return ParseModelConfig(json, "dir/config.json"); }

std::vector<int64_t> WindowsOf(const ModelConfig& model) {
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : model.layers) windows.push_back(layer.attention().window);
  return windows;
}

std::vector<bool> SparseOf(const ModelConfig& model) {
  std::vector<bool> sparse;
  for (const LayerSpec& layer : model.layers) sparse.push_back(layer.sparse());
  return sparse;
}

// A configuration of the family with only the keys of `keys` ("" or ", \"x\": 1").
std::string Qwen3(const std::string& keys = "") {
  return R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe")" + keys + "}";
}
std::string Mixtral(const std::string& keys = "") {
  return R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral")" + keys + "}";
}
std::string Qwen2(const std::string& keys = "") {
  return R"({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe")" + keys + "}";
}
std::string Olmoe(const std::string& keys = "") {
  return R"({"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe")" + keys + "}";
}

std::string Glm4(const std::string& keys = "") {
  return R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "head_dim": 128)" +
         keys + "}";
}

std::string MiniMaxM2(const std::string& keys = "") {
  return R"({"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2")" + keys + "}";
}

std::string GptOss(const std::string& keys = "") {
  return R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss")" + keys + "}";
}

// The values that transformers 5.23 and 4.57 give for a config.json without these keys.
TEST(ModelConfigTest, DefaultsOfQwen3Moe) {
  const ModelConfig c = Parse(Qwen3());
  EXPECT_EQ(c.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(c.model_type, "qwen3_moe");
  EXPECT_EQ(c.vocab_size, 151936);
  EXPECT_EQ(c.hidden_size, 2048);
  EXPECT_EQ(c.num_layers(), 24);
  EXPECT_EQ(c.attention().heads, 32);
  EXPECT_EQ(c.attention().kv_heads, 4);
  EXPECT_EQ(c.attention().head_dim, 64);
  EXPECT_EQ(c.max_position, 32768);
  EXPECT_EQ(c.final_norm.eps, 1e-6);
  EXPECT_EQ(c.attention().rope.kind, RopeKind::kDefault);
  EXPECT_EQ(c.attention().rope.theta, 1e4);
  EXPECT_EQ(c.attention().qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(c.attention().qkv_bias);
  EXPECT_FALSE(c.attention().output_bias);
  EXPECT_EQ(c.num_experts(), 128);
  EXPECT_EQ(c.top_k(), 8);
  EXPECT_EQ(c.experts().router.norm, RouterNorm::kNone);
  EXPECT_EQ(c.expert_width(), 768);
  EXPECT_EQ(c.dense_width(), 0);
  EXPECT_EQ(Parse(Qwen3(R"(, "mlp_only_layers": [1])")).dense_width(), 6144);
  EXPECT_EQ(c.shared_width(), 0);
  EXPECT_FALSE(c.experts().shared_gate);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.num_sparse_layers(), 24);
  EXPECT_EQ(WindowsOf(c), std::vector<int64_t>(24, 0));
  EXPECT_TRUE(c.eos_token_ids.empty());
  EXPECT_EQ(c.bos_token_id, -1);
  EXPECT_EQ(c.expert_parameters(), 3 * 2048 * 768);
}

TEST(ModelConfigTest, DefaultsOfMixtral) {
  const ModelConfig c = Parse(Mixtral());
  EXPECT_EQ(c.model_type, "mixtral");
  EXPECT_EQ(c.vocab_size, 32000);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.num_layers(), 32);
  EXPECT_EQ(c.attention().heads, 32);
  EXPECT_EQ(c.attention().kv_heads, 8);
  EXPECT_EQ(c.attention().head_dim, 128);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  EXPECT_EQ(c.attention().rope.theta, 1e6);
  EXPECT_EQ(c.attention().qk_norm, QkNorm::kNone);
  EXPECT_FALSE(c.attention().qkv_bias);
  EXPECT_EQ(c.num_experts(), 8);
  EXPECT_EQ(c.top_k(), 2);
  EXPECT_EQ(c.experts().router.norm, RouterNorm::kSum);
  EXPECT_EQ(c.expert_width(), 14336);
  EXPECT_EQ(c.num_sparse_layers(), 32);
  EXPECT_EQ(WindowsOf(c), std::vector<int64_t>(32, 0));
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.pad_token_id, -1);
}

TEST(ModelConfigTest, DefaultsOfQwen2Moe) {
  const ModelConfig c = Parse(Qwen2());
  EXPECT_EQ(c.attention().heads, 16);
  EXPECT_EQ(c.attention().kv_heads, 16);
  EXPECT_EQ(c.attention().head_dim, 128);
  EXPECT_EQ(c.attention().rope.theta, 1e4);
  EXPECT_TRUE(c.attention().qkv_bias);
  EXPECT_FALSE(c.attention().output_bias);
  EXPECT_EQ(c.num_experts(), 60);
  EXPECT_EQ(c.top_k(), 4);
  EXPECT_EQ(c.experts().router.norm, RouterNorm::kNone);
  EXPECT_EQ(c.expert_width(), 1408);
  EXPECT_EQ(Parse(Qwen2(R"(, "mlp_only_layers": [1])")).dense_width(), 5632);
  EXPECT_EQ(c.shared_width(), 5632);
  EXPECT_TRUE(c.experts().shared_gate);
  EXPECT_EQ(WindowsOf(c), std::vector<int64_t>(24, 0));
  EXPECT_FALSE(Parse(Qwen2(R"(, "qkv_bias": false)")).attention().qkv_bias);
}

TEST(ModelConfigTest, DefaultsOfOlmoe) {
  const ModelConfig c = Parse(Olmoe());
  EXPECT_EQ(c.vocab_size, 50304);
  EXPECT_EQ(c.num_layers(), 16);
  EXPECT_EQ(c.attention().kv_heads, 16);
  EXPECT_EQ(c.max_position, 4096);
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  EXPECT_EQ(c.attention().qk_norm, QkNorm::kProjection);
  EXPECT_EQ(c.attention().clip_qkv, 0.0);
  EXPECT_EQ(c.num_experts(), 64);
  EXPECT_EQ(c.top_k(), 8);
  EXPECT_EQ(c.expert_width(), 2048);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{50279});
  EXPECT_EQ(c.pad_token_id, 1);
  EXPECT_EQ(Parse(Olmoe(R"(, "clip_qkv": 8)")).attention().clip_qkv, 8.0);
  EXPECT_TRUE(Parse(Olmoe(R"(, "attention_bias": true)")).attention().output_bias);
}

// But for head_dim, which hidden / heads would not be a whole number for.
TEST(ModelConfigTest, DefaultsOfGlm4Moe) {
  const ModelConfig c = Parse(Glm4());
  EXPECT_EQ(c.vocab_size, 151552);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.num_layers(), 46);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  EXPECT_EQ(c.attention().heads, 96);
  EXPECT_EQ(c.attention().kv_heads, 8);
  EXPECT_EQ(c.attention().rotary_dim, 64);
  EXPECT_EQ(c.attention().rope.theta, 1e4);
  EXPECT_EQ(c.attention().qk_norm, QkNorm::kNone);
  EXPECT_FALSE(c.attention().qkv_bias);
  EXPECT_EQ(c.num_sparse_layers(), 45);
  EXPECT_FALSE(c.is_sparse(0));
  EXPECT_EQ(c.dense_width(), 10944);
  EXPECT_EQ(c.expert_width(), 1408);
  EXPECT_EQ(c.shared_width(), 1408);
  EXPECT_FALSE(c.experts().shared_gate);
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.experts, 128);
  EXPECT_EQ(router.top_k, 8);
  EXPECT_EQ(router.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(router.correction_bias);
  EXPECT_FALSE(router.logit_bias);
  EXPECT_EQ(router.num_groups, 1);
  EXPECT_EQ(router.norm, RouterNorm::kSumPlusEps);
  EXPECT_EQ(router.norm_eps, 1e-20);
  EXPECT_EQ(router.scale, 1.0);
  EXPECT_TRUE(c.eos_token_ids.empty());

  const ModelConfig other = Parse(Glm4(R"(, "use_qk_norm": true, "attention_bias": true,
      "n_group": 4, "topk_group": 2, "norm_topk_prob": false, "routed_scaling_factor": 2.5,
      "n_shared_experts": 3, "first_k_dense_replace": 3)"));
  EXPECT_EQ(other.attention().qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(other.attention().qkv_bias);
  EXPECT_FALSE(other.attention().output_bias);
  EXPECT_EQ(other.experts().router.num_groups, 4);
  EXPECT_EQ(other.experts().router.groups_kept, 2);
  EXPECT_EQ(other.experts().router.group_rule, GroupRule::kTopTwoSum);
  EXPECT_EQ(other.experts().router.norm, RouterNorm::kNone);
  EXPECT_EQ(other.experts().router.scale, 2.5);
  EXPECT_EQ(other.shared_width(), 3 * 1408);
  EXPECT_EQ(other.num_sparse_layers(), 43);
}

// Inside of either object it counts more than outside.
TEST(ModelConfigTest, PartialRotation) {
  const auto rotated = [](const std::string& keys) {
    return Parse(Glm4(keys)).attention().rotary_dim;
  };
  EXPECT_EQ(rotated(R"(, "partial_rotary_factor": 0.25)"), 32);
  EXPECT_EQ(rotated(R"(, "rope_parameters": {"partial_rotary_factor": 1.0})"), 128);
  EXPECT_EQ(rotated(R"(, "partial_rotary_factor": 0.25,
                        "rope_scaling": {"type": "linear", "factor": 2, "partial_rotary_factor": 0.75})"),
            96);
}

TEST(ModelConfigTest, DefaultsOfMiniMaxM2) {
  const ModelConfig c = Parse(MiniMaxM2());
  EXPECT_EQ(c.vocab_size, 200064);
  EXPECT_EQ(c.hidden_size, 3072);
  EXPECT_EQ(c.num_layers(), 62);
  EXPECT_EQ(c.max_position, 196608);
  EXPECT_EQ(c.final_norm.eps, 1e-6);
  EXPECT_EQ(c.attention().heads, 48);
  EXPECT_EQ(c.attention().kv_heads, 8);
  EXPECT_EQ(c.attention().head_dim, 128);
  EXPECT_EQ(c.attention().rotary_dim, 128);
  EXPECT_EQ(c.attention().rope.theta, 5e6);
  EXPECT_EQ(c.attention().qk_norm, QkNorm::kProjection);
  EXPECT_FALSE(c.attention().qkv_bias);
  EXPECT_EQ(c.num_sparse_layers(), 62);
  EXPECT_EQ(c.expert_width(), 1536);
  EXPECT_EQ(c.shared_width(), 0);
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.experts, 256);
  EXPECT_EQ(router.top_k, 8);
  EXPECT_EQ(router.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(router.correction_bias);
  EXPECT_EQ(router.num_groups, 1);
  EXPECT_EQ(router.norm, RouterNorm::kSum);
  EXPECT_EQ(router.scale, 1.0);
  EXPECT_EQ(c.bos_token_id, 200034);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{200020});
}

// The release says it as a number of values; a share, in either place, counts more.
TEST(ModelConfigTest, RotationOfMiniMaxM2) {
  const auto rotated = [](const std::string& keys) {
    return Parse(MiniMaxM2(keys)).attention().rotary_dim;
  };
  EXPECT_EQ(rotated(R"(, "rotary_dim": 64)"), 64);
  EXPECT_EQ(rotated(R"(, "rotary_dim": 128, "head_dim": 192)"), 128);
  EXPECT_EQ(rotated(R"(, "rotary_dim": 64, "partial_rotary_factor": 0.25)"), 32);
  EXPECT_EQ(rotated(R"(, "rotary_dim": 64, "rope_parameters": {"partial_rotary_factor": 0.25})"),
            32);
}

// Blocks are as large for all groups; of windows in more layers, or fewer, there are several
// groups.
TEST(ModelConfigTest, GroupsOfLayersHaveBlocksOfOneSize) {
  const auto groups_of = [](const std::string& layers) {  // s: with a window, f: without
    std::string types;
    for (const char type : layers) {
      types += types.empty() ? "" : ", ";
      types += type == 's' ? R"("sliding_attention")" : R"("full_attention")";
    }
    return KvGroupsOf(Parse(GptOss(R"(, "num_hidden_layers": )" + std::to_string(layers.size()) +
                                   R"(, "layer_types": [)" + types + "]")));
  };
  const KvGroups halves = groups_of("sfsfsf");
  EXPECT_EQ(halves.windows, (std::vector<int64_t>{128, 0}));
  EXPECT_EQ(halves.of_layer, (std::vector<size_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(halves.index, (std::vector<int64_t>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(halves.layers_of_block, 3);
  const KvGroups fifths = groups_of("ssfsssssfsss");
  EXPECT_EQ(fifths.windows, (std::vector<int64_t>{128, 0, 128, 128, 128, 128}));
  EXPECT_EQ(fifths.of_layer, (std::vector<size_t>{0, 0, 1, 2, 2, 3, 3, 4, 1, 4, 5, 5}));
  EXPECT_EQ(fifths.index, (std::vector<int64_t>{0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(fifths.layers_of_block, 2);
  // Twelve groups would have no room to spare, but are too many.
  const KvGroups one = groups_of("sssssfssssss");
  EXPECT_EQ(one.count(), 7u);
  EXPECT_EQ(one.layers_of_block, 2);
}

TEST(ModelConfigTest, DefaultsOfGptOss) {
  const ModelConfig c = Parse(GptOss());
  EXPECT_EQ(c.vocab_size, 201088);
  EXPECT_EQ(c.hidden_size, 2880);
  EXPECT_EQ(c.num_layers(), 36);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  EXPECT_EQ(c.attention().heads, 64);
  EXPECT_EQ(c.attention().kv_heads, 8);
  EXPECT_EQ(c.attention().head_dim, 64);
  EXPECT_TRUE(c.attention().qkv_bias);
  EXPECT_TRUE(c.attention().output_bias);
  EXPECT_TRUE(c.attention().sinks);
  EXPECT_EQ(c.attention().window, 128);
  EXPECT_EQ(c.layer(1).attention().window, 0);
  EXPECT_EQ(c.layer(34).attention().window, 128);
  const RopeConfig& rope = c.attention().rope;
  EXPECT_EQ(rope.kind, RopeKind::kYarn);
  EXPECT_EQ(rope.theta, 150000.0);
  EXPECT_EQ(rope.factor, 32.0);
  EXPECT_EQ(rope.original_max_position, 4096);
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(c.num_sparse_layers(), 36);
  EXPECT_EQ(c.expert_width(), 2880);
  EXPECT_EQ(c.expert_parameters(), 3 * 2880 * 2880);
  const MlpSpec& expert = c.experts().expert;
  EXPECT_TRUE(expert.bias);
  EXPECT_EQ(expert.Biases(2880), 3 * 2880);
  EXPECT_EQ(expert.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(expert.swiglu_alpha, 1.702);
  EXPECT_EQ(expert.swiglu_limit, 7.0);
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.experts, 128);
  EXPECT_EQ(router.top_k, 4);
  EXPECT_EQ(router.score, ScoreFunction::kLogit);
  EXPECT_TRUE(router.logit_bias);
  EXPECT_FALSE(router.correction_bias);
  EXPECT_EQ(router.norm, RouterNorm::kSoftmax);
  EXPECT_TRUE(c.eos_token_ids.empty());

  const ModelConfig other = Parse(GptOss(R"(, "num_hidden_layers": 3, "attention_bias": false,
      "layer_types": ["full_attention", "full_attention", "sliding_attention"],
      "sliding_window": 64, "swiglu_limit": 5, "swiglu_alpha": 1.5,
      "rope_parameters": {"rope_theta": 1000, "rope_type": "default"})"));
  EXPECT_EQ(WindowsOf(other), (std::vector<int64_t>{0, 0, 64}));
  EXPECT_FALSE(other.attention().qkv_bias);
  EXPECT_FALSE(other.attention().output_bias);
  EXPECT_EQ(other.experts().expert.swiglu_limit, 5.0);
  EXPECT_EQ(other.experts().expert.swiglu_alpha, 1.5);
  EXPECT_EQ(other.attention().rope.kind, RopeKind::kDefault);
  EXPECT_EQ(WindowsOf(Parse(GptOss(R"(, "num_hidden_layers": 2, "sliding_window": null)"))),
            (std::vector<int64_t>{0, 0}));
}

TEST(ModelConfigTest, NullIsNotMissing) {
  EXPECT_EQ(Parse(Mixtral(R"(, "num_key_value_heads": null)")).attention().kv_heads, 32);
  EXPECT_TRUE(Parse(Mixtral(R"(, "eos_token_id": null)")).eos_token_ids.empty());
  EXPECT_EQ(Parse(Mixtral(R"(, "head_dim": null)")).attention().head_dim, 128);
  EXPECT_EQ(WindowsOf(Parse(Qwen3(R"(, "sliding_window": null, "use_sliding_window": true)"))),
            std::vector<int64_t>(24, 0));
  EXPECT_EQ(Parse(Qwen3(R"(, "mlp_only_layers": null)")).num_sparse_layers(), 24);
  EXPECT_EQ(Caught([] { Parse(Qwen3(R"(, "vocab_size": null)")); }).kind(), ErrorKind::kCorrupt);
}

TEST(ModelConfigTest, TokenIds) {
  EXPECT_EQ(Parse(Qwen3(R"(, "eos_token_id": 7)")).eos_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(Parse(Qwen3(R"(, "eos_token_id": [7, 9])")).eos_token_ids,
            (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(Parse(Qwen3(R"(, "pad_token_id": -1)")).pad_token_id, -1);
  EXPECT_EQ(Parse(Qwen3(R"(, "bos_token_id": 3)")).bos_token_id, 3);
}

TEST(ModelConfigTest, DenseLayers) {
  const ModelConfig step = Parse(Qwen2(R"(, "num_hidden_layers": 5, "decoder_sparse_step": 2)"));
  EXPECT_EQ(SparseOf(step), (std::vector<bool>{false, true, false, true, false}));
  EXPECT_EQ(step.num_sparse_layers(), 2);
  const ModelConfig only =
      Parse(Qwen3(R"(, "num_hidden_layers": 4, "mlp_only_layers": [0, 2, 99])"));
  EXPECT_EQ(SparseOf(only), (std::vector<bool>{false, true, false, true}));
  const Error none =
      Caught([] { Parse(Qwen3(R"(, "num_hidden_layers": 2, "mlp_only_layers": [0, 1])")); });
  EXPECT_EQ(none.kind(), ErrorKind::kUnsupported);
}

TEST(ModelConfigTest, SlidingWindows) {
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(WindowsOf(Parse(Mixtral(R"(, "num_hidden_layers": 2, "sliding_window": 16)"))),
            (Windows{16, 16}));
  const std::string three = R"(, "num_hidden_layers": 3, "sliding_window": 20)";
  EXPECT_EQ(WindowsOf(Parse(Qwen3(three))), (Windows{0, 0, 0}));
  EXPECT_EQ(
      WindowsOf(Parse(Qwen3(three + R"(, "use_sliding_window": true, "max_window_layers": 1)"))),
      (Windows{20, 20, 20}));
  EXPECT_EQ(WindowsOf(Parse(Qwen3(R"(, "num_hidden_layers": 1, "use_sliding_window": true)"))),
            (Windows{4096}));
  EXPECT_EQ(WindowsOf(Parse(Olmoe(three))), (Windows{0, 0, 0}));
  EXPECT_EQ(WindowsOf(Parse(Qwen2(three))), (Windows{0, 0, 0}));
  const std::string on = three + R"(, "use_sliding_window": true)";
  EXPECT_EQ(WindowsOf(Parse(Qwen2(on))), (Windows{20, 0, 20}));
  EXPECT_EQ(WindowsOf(Parse(Qwen2(on + R"(, "max_window_layers": 1)"))), (Windows{20, 0, 0}));
  EXPECT_EQ(
      WindowsOf(Parse(Qwen2(
          on + R"(, "layer_types": ["full_attention", "sliding_attention", "full_attention"])"))),
      (Windows{0, 20, 0}));
  // Written by transformers 5 when the switch is off.
  EXPECT_EQ(WindowsOf(Parse(Qwen2(R"(, "num_hidden_layers": 1, "sliding_window": 0)"))),
            (Windows{0}));
  const Error contradiction = Caught([&] {
    Parse(Qwen2(three +
                R"(, "layer_types": ["full_attention", "sliding_attention", "full_attention"])"));
  });
  EXPECT_EQ(contradiction.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(contradiction, "layer_types")) << contradiction.what();
  EXPECT_EQ(Caught([&] { Parse(Qwen2(on + R"(, "layer_types": ["full_attention"])")); }).kind(),
            ErrorKind::kCorrupt);
  EXPECT_EQ(Caught([&] {
              Parse(Qwen2(R"(, "num_hidden_layers": 1, "layer_types": ["linear_attention"])"));
            }).kind(),
            ErrorKind::kUnsupported);
}

TEST(ModelConfigTest, RopeKinds) {
  const RopeConfig plain =
      Parse(Qwen3(R"(, "rope_theta": 5e5, "rope_scaling": null)")).attention().rope;
  EXPECT_EQ(plain.kind, RopeKind::kDefault);
  EXPECT_EQ(plain.theta, 5e5);

  const RopeConfig linear =
      Parse(Qwen3(R"(, "rope_scaling": {"type": "linear", "factor": 2.5})")).attention().rope;
  EXPECT_EQ(linear.kind, RopeKind::kLinear);
  EXPECT_EQ(linear.factor, 2.5);

  const RopeConfig dynamic =
      Parse(
          Qwen3(
              R"(, "max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 4})"))
          .attention()
          .rope;
  EXPECT_EQ(dynamic.kind, RopeKind::kDynamicNtk);
  EXPECT_EQ(dynamic.original_max_position, 64);

  const RopeConfig yarn =
      Parse(Qwen3(R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0})")).attention().rope;
  EXPECT_EQ(yarn.kind, RopeKind::kYarn);
  EXPECT_EQ(yarn.original_max_position, 32768);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_EQ(yarn.attention_factor, 0.0);
  EXPECT_TRUE(yarn.truncate);

  const RopeConfig full =
      Parse(Qwen3(R"(, "rope_theta": 3, "rope_parameters": {"rope_theta": 2000.0,
      "rope_type": "yarn", "factor": 3.0, "beta_fast": 16, "beta_slow": 2.0, "attention_factor": 1.3,
      "mscale": 0.5, "mscale_all_dim": 0.25, "original_max_position_embeddings": 128, "truncate": false})"))
          .attention()
          .rope;
  EXPECT_EQ(full.theta, 2000.0);
  EXPECT_EQ(full.factor, 3.0);
  EXPECT_EQ(full.beta_fast, 16.0);
  EXPECT_EQ(full.beta_slow, 2.0);
  EXPECT_EQ(full.attention_factor, 1.3);
  EXPECT_EQ(full.mscale, 0.5);
  EXPECT_EQ(full.mscale_all_dim, 0.25);
  EXPECT_EQ(full.original_max_position, 128);
  EXPECT_FALSE(full.truncate);

  const RopeConfig ratio = Parse(Qwen3(R"(, "rope_scaling": {"rope_type": "yarn", "factor": null,
      "original_max_position_embeddings": 4096})"))
                               .attention()
                               .rope;
  EXPECT_EQ(ratio.factor, 8.0);
  const RopeConfig top = Parse(Qwen3(R"(, "original_max_position_embeddings": 1000,
      "rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 4096})"))
                             .attention()
                             .rope;
  EXPECT_EQ(top.original_max_position, 1000);
  // rope_scaling wins over rope_parameters, whose theta is then not read either.
  const RopeConfig both = Parse(Mixtral(R"(, "rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "linear", "factor": 3, "rope_theta": 5})"))
                              .attention()
                              .rope;
  EXPECT_EQ(both.factor, 2.0);
  EXPECT_EQ(both.theta, 1e6);

  const RopeConfig llama3 =
      Parse(Mixtral(R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"))
          .attention()
          .rope;
  EXPECT_EQ(llama3.kind, RopeKind::kLlama3);
  EXPECT_EQ(llama3.low_freq_factor, 1.0);
  EXPECT_EQ(llama3.high_freq_factor, 4.0);
  EXPECT_EQ(llama3.original_max_position, 64);
}

TEST(ModelConfigTest, CheckpointTypes) {
  EXPECT_EQ(Parse(Qwen3()).checkpoint_dtype, DType::kBF16);
  EXPECT_EQ(Parse(Qwen3(R"(, "torch_dtype": "float16")")).checkpoint_dtype, DType::kF16);
  EXPECT_EQ(Parse(Qwen3(R"(, "dtype": "float32")")).checkpoint_dtype, DType::kF32);
}

TEST(ModelConfigTest, FamilyByModelTypeAlone) {
  EXPECT_EQ(Parse(R"({"model_type": "mixtral"})").architecture, "MixtralForCausalLM");
  EXPECT_EQ(Parse(R"({"model_type": "olmoe", "architectures": null})").architecture,
            "OlmoeForCausalLM");
}

TEST(ModelConfigTest, ExpertCountHasTwoNames) {
  EXPECT_EQ(Parse(Qwen3(R"(, "num_local_experts": 16)")).num_experts(), 16);
  EXPECT_EQ(Parse(Mixtral(R"(, "num_experts": 16)")).num_experts(), 16);
  EXPECT_EQ(Parse(Mixtral(R"(, "num_experts": 16, "num_local_experts": 16)")).num_experts(), 16);
}

struct Malformed {
  std::string json;
  ErrorKind kind;
  std::vector<std::string> named;
};

TEST(ModelConfigTest, Malformed) {
  constexpr ErrorKind kCorrupt = ErrorKind::kCorrupt;
  constexpr ErrorKind kUnsupported = ErrorKind::kUnsupported;
  const Malformed cases[] = {
      {"", kCorrupt, {"JSON"}},
      {"{", kCorrupt, {"JSON"}},
      {"[]", kCorrupt, {"a JSON object", "a list"}},
      {"3", kCorrupt, {"a JSON object"}},
      {std::string(1 << 20, '['), kCorrupt, {"JSON"}},
      {"{}", kCorrupt, {"architectures", "model_type"}},
      {R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})",
       kUnsupported,
       {"LlamaForCausalLM", "Qwen3MoeForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM",
        "OlmoeForCausalLM", "Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", "GptOssForCausalLM",
        "Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration"}},
      {R"({"model_type": "jamba"})", kUnsupported, {"model_type", "jamba"}},
      {R"({"architectures": ["MixtralForCausalLM"], "model_type": "olmoe"})",
       kCorrupt,
       {"model_type", "olmoe", "MixtralForCausalLM"}},
      {R"({"architectures": "MixtralForCausalLM"})", kCorrupt, {"architectures", "list"}},
      {R"({"architectures": [3]})", kCorrupt, {"architectures"}},
      {Qwen3(R"(, "vocab_size": 0)"), kCorrupt, {"vocab_size", "is 0"}},
      {Qwen3(R"(, "vocab_size": 10000001)"), kCorrupt, {"vocab_size", "10000000"}},
      {Qwen3(R"(, "vocab_size": "151936")"), kCorrupt, {"vocab_size", "integer"}},
      {Qwen3(R"(, "vocab_size": 1.5)"), kCorrupt, {"vocab_size", "1.5"}},
      {Qwen3(R"(, "vocab_size": -1)"), kCorrupt, {"vocab_size", "-1"}},
      {Qwen3(R"(, "vocab_size": 18446744073709551615)"), kCorrupt, {"vocab_size"}},
      {Qwen3(R"(, "vocab_size": [1])"), kCorrupt, {"vocab_size", "a list"}},
      {Qwen3(R"(, "hidden_size": 1000001)"), kCorrupt, {"hidden_size"}},
      {Qwen3(R"(, "num_hidden_layers": 10001)"), kCorrupt, {"num_hidden_layers"}},
      {Qwen3(R"(, "num_experts": 65536)"), kCorrupt, {"num_experts", "65535"}},
      {Qwen3(R"(, "num_experts": 4)"), kCorrupt, {"num_experts_per_tok", "is 8", "4"}},
      {Qwen3(R"(, "num_experts": 16, "num_local_experts": 8)"),
       kCorrupt,
       {"num_local_experts", "16"}},
      {Qwen3(R"(, "num_attention_heads": 30)"), kCorrupt, {"num_key_value_heads", "30", "default"}},
      {Qwen3(R"(, "num_attention_heads": 32, "num_key_value_heads": 5)"),
       kCorrupt,
       {"num_key_value_heads", "is 5", "32"}},
      {Qwen3(R"(, "head_dim": 65)"), kCorrupt, {"head_dim", "65", "even"}},
      {Qwen3(R"(, "hidden_size": 96)"), kCorrupt, {"head_dim", "is 3", "hidden_size"}},
      {Qwen3(R"(, "hidden_size": 100)"), kCorrupt, {"hidden_size", "100", "32"}},
      {Qwen3(R"(, "hidden_size": 1000000, "num_attention_heads": 4, "num_key_value_heads": 4)"),
       kCorrupt,
       {"head_dim", "250000"}},
      {Qwen3(R"(, "hidden_size": 1000000, "head_dim": 128, "moe_intermediate_size": 1000000)"),
       kCorrupt,
       {"hidden_size 1000000", "parameters"}},
      {Qwen3(R"(, "hidden_size": 1000000, "head_dim": 128, "moe_intermediate_size": 1000000,
                 "num_experts": 65535, "num_hidden_layers": 10000)"),
       kCorrupt,
       {"config.json"}},
      {Qwen3(R"(, "rms_norm_eps": -1)"), kCorrupt, {"rms_norm_eps"}},
      {Qwen3(R"(, "rms_norm_eps": "tiny")"), kCorrupt, {"rms_norm_eps", "tiny"}},
      {Qwen3(R"(, "tie_word_embeddings": 1)"), kCorrupt, {"tie_word_embeddings", "true or false"}},
      {Qwen3(R"(, "mlp_only_layers": ["a"])"), kCorrupt, {"mlp_only_layers"}},
      {Qwen3(R"(, "decoder_sparse_step": 0)"), kCorrupt, {"decoder_sparse_step"}},
      {Qwen3(R"(, "eos_token_id": "x")"), kCorrupt, {"eos_token_id"}},
      {Qwen3(R"(, "eos_token_id": [-2])"), kCorrupt, {"eos_token_id", "-2"}},
      {Qwen3(R"(, "hidden_act": "gelu")"), kUnsupported, {"hidden_act", "gelu", "silu"}},
      {Qwen3(R"(, "hidden_act": 3)"), kCorrupt, {"hidden_act", "string"}},
      {Qwen3(R"(, "torch_dtype": "float8_e4m3fn")"),
       kUnsupported,
       {"torch_dtype", "float8_e4m3fn"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "fp8"})"),
       kUnsupported,
       {"quantization_config", "weight_block_size"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128]})"),
       kUnsupported,
       {"quantization_config", "weight_block_size"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]})"),
       kCorrupt,
       {"quantization_config.weight_block_size"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "fp8", "fmt": "e5m2",
                                          "weight_block_size": [128, 128]})"),
       kUnsupported,
       {"quantization_config", "e5m2"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "awq"})"),
       kUnsupported,
       {"quantization_config", "awq", "bf16"}},
      {Qwen3(R"(, "quantization_config": {})"), kUnsupported, {"quantization_config"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "compressed-tensors",
                                          "format": "int-quantized"})"),
       kUnsupported,
       {"quantization_config", "compressed-tensors", "int-quantized"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "compressed-tensors",
                                          "format": "float-quantized"})"),
       kCorrupt,
       {"config_groups"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "compressed-tensors",
                                          "format": "float-quantized", "config_groups": {"group_0":
                                          {"weights": {"num_bits": 8, "strategy": "tensor"}}}})"),
       kUnsupported,
       {"quantization_config", "float-quantized"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                                          "modules_to_not_convert": "lm_head"})"),
       kCorrupt,
       {"modules_to_not_convert"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                                          "modules_to_not_convert": ["re:layers[.]0"]})"),
       kUnsupported,
       {"modules_to_not_convert[0]", "pattern"}},
      {Qwen3(R"(, "rope_theta": 0)"), kCorrupt, {"rope_theta"}},
      {Qwen3(R"(, "rope_theta": 1e400)"), kCorrupt, {"JSON"}},
      {Qwen3(R"(, "rope_scaling": 3)"), kCorrupt, {"rope_scaling", "object"}},
      {Qwen3(R"(, "rope_scaling": {"type": "longrope"})"),
       kUnsupported,
       {"longrope", "yarn", "llama3"}},
      {Qwen3(R"(, "rope_scaling": {"type": "linear"})"),
       kCorrupt,
       {"rope_scaling.factor", "missing"}},
      {Qwen3(R"(, "rope_scaling": {"type": "linear", "factor": 0})"),
       kCorrupt,
       {"rope_scaling.factor"}},
      {Qwen3(R"(, "rope_scaling": {"type": "llama3", "factor": 8})"),
       kCorrupt,
       {"low_freq_factor"}},
      {Qwen3(
           R"(, "rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})"),
       kCorrupt,
       {"high_freq_factor"}},
      {Qwen3(R"(, "rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 2})"),
       kCorrupt,
       {"beta_fast"}},
      {Qwen3(R"(, "rope_scaling": {"type": "yarn", "factor": 2}, "rope_theta": 1)"),
       kCorrupt,
       {"rope_theta"}},
      {Qwen3(R"(, "partial_rotary_factor": 0.5)"), kUnsupported, {"partial_rotary_factor", "0.5"}},
      {Glm4(R"(, "partial_rotary_factor": 0)"), kCorrupt, {"partial_rotary_factor", "rotates 0"}},
      {Glm4(R"(, "partial_rotary_factor": 0.7)"),
       kCorrupt,
       {"partial_rotary_factor", "rotates 89"}},
      {Glm4(R"(, "n_group": 3)"), kCorrupt, {"n_group", "is 3", "128"}},
      {Glm4(R"(, "n_group": 4, "topk_group": 5)"), kCorrupt, {"topk_group", "from 1 to 4"}},
      {Glm4(R"(, "n_group": 64, "topk_group": 3)"), kCorrupt, {"topk_group", "leaves 6", "8"}},
      {Glm4(R"(, "n_routed_experts": 512, "n_group": 512, "topk_group": 100)"),
       kUnsupported,
       {"layer 1", "512 groups"}},
      {Glm4(R"(, "first_k_dense_replace": 46)"), kUnsupported, {"no layer has experts"}},
      {MiniMaxM2(R"(, "rotary_dim": 63)"), kCorrupt, {"rotary_dim", "63", "even"}},
      {MiniMaxM2(R"(, "rotary_dim": 130)"), kCorrupt, {"rotary_dim", "from 2 to 128"}},
      {MiniMaxM2(R"(, "scoring_func": "softmax")"), kUnsupported, {"scoring_func", "sigmoid"}},
      {MiniMaxM2(R"(, "qk_norm_type": "per_head")"), kUnsupported, {"qk_norm_type", "per_layer"}},
      {MiniMaxM2(R"(, "use_qk_norm": false)"), kUnsupported, {"use_qk_norm"}},
      {MiniMaxM2(R"(, "use_routing_bias": false)"), kUnsupported, {"use_routing_bias"}},
      {MiniMaxM2(R"(, "shared_intermediate_size": 64)"),
       kUnsupported,
       {"shared_intermediate_size"}},
      {MiniMaxM2(R"(, "attn_type_list": [1, 0, 1])"), kUnsupported, {"attn_type_list"}},
      {GptOss(R"(, "layer_types": ["sliding_attention"])"), kCorrupt, {"layer_types", "36"}},
      {GptOss(R"(, "swiglu_limit": 0)"), kCorrupt, {"swiglu_limit"}},
      {GptOss(R"(, "quantization_config": 3)"), kCorrupt, {"quantization_config"}},
      {Qwen3(R"(, "quantization_config": {"quant_method": "mxfp4"})"),
       kUnsupported,
       {"quantization_config", "mxfp4", "gpt_oss"}},
      {Olmoe(R"(, "clip_qkv": -1)"), kCorrupt, {"clip_qkv"}},
      {Mixtral(R"(, "sliding_window": -5)"), kCorrupt, {"sliding_window"}},
  };
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.json.substr(0, 300));
    const Error error = Caught([&] { Parse(malformed.json); });
    EXPECT_EQ(error.kind(), malformed.kind) << error.what();
    EXPECT_TRUE(Contains(error, "dir/config.json")) << error.what();
    for (const std::string& part : malformed.named) {
      EXPECT_TRUE(Contains(error, part)) << "expected " << part << " in: " << error.what();
    }
    EXPECT_LT(std::string(error.what()).size(), 1000u);
  }
}

// The defaults of transformers 5.23.
TEST(ModelConfigTest, DefaultsOfErnie45) {
  const ModelConfig c = Parse(R"({"architectures": ["Ernie4_5_MoeForCausalLM"],
                                  "model_type": "ernie4_5_moe"})");
  EXPECT_EQ(c.vocab_size, 103424);
  EXPECT_EQ(c.hidden_size, 2560);
  EXPECT_EQ(c.num_layers(), 28);
  EXPECT_EQ(c.num_sparse_layers(), 27);
  EXPECT_FALSE(c.is_sparse(0));
  EXPECT_EQ(c.attention().heads, 20);
  EXPECT_EQ(c.attention().kv_heads, 4);
  EXPECT_EQ(c.rope().theta, 5e5);
  EXPECT_EQ(c.final_norm.eps, 1e-5);
  EXPECT_EQ(c.expert_width(), 1536);
  EXPECT_EQ(c.shared_width(), 2 * 1536);
  EXPECT_EQ(c.dense_width(), 12288);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{2});
  const RouterSpec& router = c.experts().router;
  EXPECT_EQ(router.experts, 64);
  EXPECT_EQ(router.top_k, 6);
  EXPECT_EQ(router.score, ScoreFunction::kSoftmax);
  EXPECT_TRUE(router.correction_bias);
  EXPECT_TRUE(router.f32_weights);
  EXPECT_EQ(router.norm, RouterNorm::kSumAtLeastEps);
  EXPECT_EQ(router.norm_eps, 1e-12);
  EXPECT_NE(c.tensors.At(TensorSlot::kRouterCorrection, 1).Find<VectorAsRow>(), nullptr);
  EXPECT_EQ(c.tensors.At(TensorSlot::kK, 1).Find<RowsInPairs>()->head_rows, 128);
  const ModelConfig some = Parse(R"({"model_type": "ernie4_5_moe", "num_hidden_layers": 9,
      "moe_layer_start_index": 2, "moe_layer_end_index": 6, "moe_layer_interval": 3})");
  for (int64_t l = 0; l < 9; ++l) EXPECT_EQ(some.is_sparse(l), l == 2 || l == 5) << l;
  const Error error = Caught([] { Parse(R"({"model_type": "ernie4_5_moe", "use_bias": true})"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(Contains(error, "use_bias")) << error.what();
}

TEST(ModelConfigTest, ScalesOfFp8) {
  const auto scales = [](const std::string& keys) {
    const ModelConfig config = Parse(Qwen3(R"(, "quantization_config": {)" + keys + "}"));
    return *config.tensors.At(TensorSlot::kQ, 0).Find<BlockScales>();
  };
  EXPECT_EQ(scales(R"("quant_method": "fp8", "weight_block_size": [128, 64])"),
            (BlockScales{128, 64, "_scale_inv"}));
  const auto compressed = [](const std::string& weights) {
    return R"("quant_method": "compressed-tensors", "format": "float-quantized",
              "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", )" +
           weights + "}}}";
  };
  const BlockScales rows = scales(compressed(R"("strategy": "channel")"));
  EXPECT_EQ(rows.rows, 1);
  EXPECT_GE(rows.cols, 1000000);
  EXPECT_EQ(rows.suffix, "_scale");
  EXPECT_EQ(scales(compressed(R"("strategy": "block", "block_structure": [128, 128])")),
            (BlockScales{128, 128, "_scale"}));
}

std::string PackedQuantization(const std::string& weights, const std::string& ignore = "[]") {
  return R"(, "quantization_config": {"quant_method": "compressed-tensors", "format":
      "pack-quantized", "ignore": )" +
         ignore + R"(, "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", )" +
         weights + "}}}}";
}

TEST(ModelConfigTest, GroupsOfPackedInt4) {
  const auto packed = [](const std::string& weights) {
    const ModelConfig config = Parse(Qwen3(PackedQuantization(weights)));
    EXPECT_TRUE(config.tensors.HasPackedInt4());
    return config.tensors.At(TensorSlot::kExpertUp, 0, 1).Find<PackedInt4>()->group;
  };
  EXPECT_EQ(packed(R"("strategy": "group", "group_size": 32, "symmetric": true)"), 32);
  EXPECT_EQ(packed(R"("strategy": "group", "group_size": 128, "actorder": "weight")"), 128);
  EXPECT_EQ(packed(R"("strategy": "channel", "actorder": null)"), 0);
  EXPECT_FALSE(Parse(Qwen3()).tensors.HasPackedInt4());
  for (const char* const other :
       {R"("strategy": "group", "group_size": 32, "symmetric": false)", R"("strategy": "group")",
        R"("strategy": "group", "group_size": 32, "actorder": "group")", R"("strategy": "tensor")",
        R"("strategy": "group", "group_size": 32, "num_bits": 8)"}) {
    const Error error = Caught([&] { Parse(Qwen3(PackedQuantization(other))); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << other;
    EXPECT_TRUE(Contains(error, "pack-quantized")) << error.what();
  }
}

TEST(ModelConfigTest, AlternativesOfModulesThatAreNotQuantised) {
  const ModelConfig config = Parse(Qwen3(PackedQuantization(
      R"("strategy": "group", "group_size": 32)",
      R"(["lm_head", "re:.*self_attn.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"])")));
  for (const char* const plain :
       {"language_model.lm_head.weight", "a.layers.1.self_attn.q_proj.weight",
        "a.layers.0.mlp.gate_proj.weight", "a.layers.0.mlp.gate_up_proj.weight",
        "a.layers.0.mlp.down_proj.weight"}) {
    EXPECT_TRUE(config.IsPlainModule(plain)) << plain;
  }
  for (const char* const packed :
       {"a.layers.1.mlp.experts.0.gate_proj.weight", "a.layers.0.mlp.side_proj.weight"}) {
    EXPECT_FALSE(config.IsPlainModule(packed)) << packed;
  }
  for (const char* const pattern : {"re:a(b(c|d))", "re:a(b", "re:a\\\\(b)", "re:(a|b)+"}) {
    const std::string ignore = std::string("[\"") + pattern + "\"]";
    const Error error = Caught([&] {
      Parse(Qwen3(PackedQuantization(R"("strategy": "group", "group_size": 32)", ignore)));
    });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << pattern;
    EXPECT_TRUE(Contains(error, "ignore[0]")) << error.what();
  }
}

TEST(ModelConfigTest, ModulesThatAreNotQuantised) {
  const ModelConfig config = Parse(Qwen3(R"(, "quantization_config": {"quant_method": "fp8",
                         "weight_block_size": [128, 128], "modules_to_not_convert":
                         ["lm_head", "gate", "model.layers.1.self_attn", "re:.*layers\\.2\\..*_proj$",
                          "re:model.norm", "re:.*mlp.router$"]})"));
  for (const char* const plain : {"lm_head.weight", "model.layers.7.mlp.gate.weight",
                                  "model.layers.1.self_attn.q_proj.weight",
                                  "model.layers.1.self_attn", "model.layers.2.mlp.up_proj.weight",
                                  "model.norm.weight", "mlp.router.x.mlp.router.weight"}) {
    EXPECT_TRUE(config.IsPlainModule(plain)) << plain;
  }
  for (const char* const other :
       {"model.layers.7.mlp.gate_proj.weight", "model.layers.11.self_attn.q_proj.weight",
        "model.layers.1.self_attn_norm.weight", "model.layers.7.mlp.up_gate.weight",
        "model.layers.22.mlp.up_proj.weight", "a.model.norm.weight",
        "model.layers.2.mlp.up_projector.weight", "model.layers.3.mlp.router_proj.weight"}) {
    EXPECT_FALSE(config.IsPlainModule(other)) << other;
  }
  EXPECT_FALSE(Parse(Qwen3()).IsPlainModule("lm_head.weight"));
}

TEST(ModelConfigTest, LoadsTheSampleAndTheFixtures) {
  const ModelConfig sample = LoadModelConfig(MOESAIC_SAMPLE_MODEL_DIR);
  EXPECT_EQ(sample.num_experts(), 32);
  EXPECT_EQ(sample.eos_token_ids, std::vector<int32_t>{4095});
  const GenerationDefaults defaults = LoadGenerationDefaults(MOESAIC_SAMPLE_MODEL_DIR);
  EXPECT_EQ(defaults.eos_token_ids, (std::vector<int32_t>{4095, 4093}));
  EXPECT_EQ(defaults.temperature, 0.7);
  EXPECT_EQ(defaults.top_p, 0.9);
  EXPECT_EQ(defaults.top_k, 40);
  int loaded = 0;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(MOESAIC_TEST_DATA_DIR) / "models")) {
    SCOPED_TRACE(entry.path().string());
    LoadModelConfig(entry.path());
    ++loaded;
  }
  EXPECT_GE(loaded, 11);
}

TEST(GenerationDefaultsTest, AbsentFileAndKeys) {
  const GenerationDefaults none = LoadGenerationDefaults("/nonexistent");
  EXPECT_LT(none.temperature, 0);
  EXPECT_LT(none.top_k, 0);
  EXPECT_TRUE(none.eos_token_ids.empty());
  const GenerationDefaults nulls =
      ParseGenerationConfig(R"({"temperature": null, "top_k": null, "eos_token_id": null})", "g");
  EXPECT_LT(nulls.temperature, 0);
  EXPECT_TRUE(nulls.do_sample);
  const GenerationDefaults full = ParseGenerationConfig(
      R"({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.05,
          "do_sample": false, "eos_token_id": 5, "bos_token_id": 6, "transformers_version": "4.51.0"})",
      "g");
  EXPECT_EQ(full.top_k, 20);
  EXPECT_EQ(full.min_p, 0.0);
  EXPECT_EQ(full.repetition_penalty, 1.05);
  EXPECT_FALSE(full.do_sample);
  EXPECT_EQ(full.eos_token_ids, std::vector<int32_t>{5});
  EXPECT_EQ(full.bos_token_id, 6);
}

TEST(GenerationDefaultsTest, Malformed) {
  for (const auto& [json, named] : {std::pair<std::string, std::string>{"[]", "object"},
                                    {R"({"temperature": -1})", "temperature"},
                                    {R"({"top_p": 1.5})", "top_p"},
                                    {R"({"top_p": "x"})", "top_p"},
                                    {R"({"top_k": 1.5})", "top_k"},
                                    {R"({"do_sample": 1})", "do_sample"},
                                    {R"({"repetition_penalty": 0})", "repetition_penalty"},
                                    {R"({"eos_token_id": [1, "x"]})", "eos_token_id"}}) {
    const Error error =
        Caught([&, j = json] { ParseGenerationConfig(j, "d/generation_config.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << json;
    EXPECT_TRUE(Contains(error, "d/generation_config.json")) << error.what();
    EXPECT_TRUE(Contains(error, named)) << error.what();
  }
}

}  // namespace
}  // namespace moesaic
