#include "core/perf/model_shape.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

ModelShape Preset(const std::string& name) {
  const fs::path file = fs::path(MOESAIC_CONFIGS_DIR) / "models" / (name + ".yaml");
  return ParseModelShape(ReadTextFile(file, 1 << 16), file.string());
}

struct Row {
  const char* name;
  double total;     // parameters, as published or computed from the configuration
  double relative;  // half a unit of its last digit, relative
  uint64_t expert_bytes;
  uint64_t kv_bytes;  // of a token, all layers; 0: encoder-decoder
};

// The table of dimensions of the papers' models: computed totals.
const Row kRows[] = {
    {"mixtral-8x7b", 46.70e9, 2e-4, 352321536, 131072},
    {"mixtral-8x22b", 140.6e9, 5e-4, 603979776, 229376},
    {"dbrx", 131.6e9, 5e-4, 396361728, 163840},
    {"deepseek-v2", 235.7e9, 5e-4, 47185920, 69120},
    {"deepseek-v2-lite", 15.71e9, 5e-4, 17301504, 31104},
    {"deepseek-v3", 671.0e9, 2e-4, 88080384, 70272},
    {"deepseek-v3-fp8", 671.0e9, 2e-4, 44040192 + 10752, 70272},
    {"deepseek-v3.2-fp8", 671.9e9, 2e-4, 44040192 + 10752, 85888},
    {"kimi-k2", 1.026e12, 5e-4, 88080384, 70272},
    {"kimi-k2-int4", 1.026e12, 5e-4, 24772608, 70272},
    {"glm-4.7-flash", 29.94e9, 5e-4, 18874368, 54144},
    {"glm-5", 743.9e9, 2e-4, 75497472, 109824},
    {"qwen2-57b-a14b", 57.4e9, 1e-3, 55050240, 57344},
    {"qwen3-30b-a3b", 30.53e9, 3e-4, 9437184, 98304},
    {"qwen3-235b-a22b", 235.1e9, 3e-4, 37748736, 192512},
    {"olmoe-1b-7b", 6.92e9, 1e-3, 12582912, 131072},
    {"gpt-oss-20b", 20.91e9, 5e-4, 49766400, 49152},
    {"gpt-oss-20b-mxfp4", 20.91e9, 5e-4, 13219200, 49152},
    {"gpt-oss-120b", 116.8e9, 5e-4, 49766400, 73728},
    {"gpt-oss-120b-mxfp4", 116.8e9, 5e-4, 13219200, 73728},
    {"qwen3-next-80b-a3b", 79.67e9, 2e-4, 6291456, 24576},
    {"qwen3.5-35b-a3b", 34.66e9, 2e-4, 6291456, 20480},
    {"arctic", 478.6e9, 3e-4, 209190912, 143360},
    {"switch-base-128", 7.41e9, 1e-3, 9437184, 0},
    {"switch-large-128", 26.31e9, 3e-4, 16777216, 0},
    {"nllb-moe-54b", 54.50e9, 3e-4, 67129344, 0},
};

// config.json as published, of what transformers has no default for.
TEST(ModelShapeTest, ConfigurationsWithLatentAttentionGiveThePresets) {
  const std::string yarn = R"("rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32,
      "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
      "original_max_position_embeddings": 4096})";
  const std::array<std::pair<const char*, std::string>, 4> published = {{
      {"deepseek-v2-lite", R"({"model_type": "deepseek_v2", "hidden_size": 2048,
          "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
          "q_lora_rank": null, "n_routed_experts": 64, "num_experts_per_tok": 6,
          "n_shared_experts": 2, "moe_intermediate_size": 1408, "intermediate_size": 10944,
          "first_k_dense_replace": 1, )" +
                               yarn + "}"},
      {"deepseek-v3", R"({"model_type": "deepseek_v3", )" + yarn + "}"},
      {"kimi-k2", R"({"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"],
          "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
          "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 163840})"},
      {"glm-4.7-flash", R"({"model_type": "glm4_moe_lite"})"},
  }};
  for (const auto& [name, json] : published) {
    const ModelShape preset = Preset(name);
    const ModelShape shape = ShapeOf(ParseModelConfig(json, "config.json"), name);
    EXPECT_EQ(shape.TotalParameters(), preset.TotalParameters()) << name;
    EXPECT_EQ(shape.KvBytesPerToken(), preset.KvBytesPerToken()) << name;
    EXPECT_EQ(shape.ExpertBytes(), preset.ExpertBytes()) << name;
    EXPECT_EQ(shape.AttentionFlopPerPosition(), preset.AttentionFlopPerPosition()) << name;
  }
}

TEST(ModelShapeTest, PresetsGiveThePublishedTotals) {
  for (const Row& row : kRows) {
    const ModelShape shape = Preset(row.name);
    EXPECT_EQ(shape.name, row.name);
    EXPECT_FALSE(shape.source.empty()) << row.name;
    EXPECT_NEAR(static_cast<double>(shape.TotalParameters()) / row.total, 1, row.relative)
        << row.name << ": " << shape.TotalParameters();
    EXPECT_EQ(shape.ExpertBytes(), row.expert_bytes) << row.name;
    if (row.kv_bytes > 0) {
      EXPECT_EQ(shape.KvBytesPerToken(), row.kv_bytes) << row.name;
    }
  }
}

TEST(ModelShapeTest, EveryPresetIsInTheTable) {
  size_t presets = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(MOESAIC_CONFIGS_DIR) / "models")) {
    EXPECT_EQ(Preset(entry.path().stem().string()).name, entry.path().stem().string());
    ++presets;
  }
  EXPECT_EQ(presets, std::size(kRows));
}

TEST(ModelShapeTest, LatentAttentionKeepsAFewSeventyFirstOfTheHeads) {
  // DeepSeek-V2: 128 heads x (192 + 128) values decompressed, 576 latent: MoE-Gen's factor of 71.
  const ModelShape shape = Preset("deepseek-v2");
  EXPECT_EQ(shape.KvBytesPerLayer(), 1152u);
  EXPECT_NEAR(128.0 * (192 + 128) * 2 / static_cast<double>(shape.KvBytesPerLayer()), 71.1, 0.05);
}

// DeepSeek-V3.2: of 128 heads' rows of 576 values 2048 are attended to, and 64 heads of 128 score
// all.
TEST(ModelShapeTest, AnIndexerBoundsAttention) {
  const ModelShape dense = ShapeOf(ParseModelConfig(R"({"model_type": "deepseek_v3"})", "f"), "v3");
  const ModelShape shape =
      ShapeOf(ParseModelConfig(R"({"model_type": "deepseek_v32"})", "f"), "v3.2");
  EXPECT_EQ(shape.KvBytesPerToken(), 61u * 2 * (576 + 128));
  const uint64_t indexer = 64 * 128 * 1536 + 7168 * (128 + 64) + 2 * 128;
  EXPECT_EQ(shape.TotalParameters() - dense.TotalParameters(), 61 * indexer);
  EXPECT_EQ(shape.PreAttentionParameters() - dense.PreAttentionParameters(), indexer);
  const double a_position = 2.0 * 128 * (576 + 512);
  EXPECT_EQ(shape.AttentionFlop(10 * 2048, 10), 10 * 2048 * a_position);
  EXPECT_EQ(shape.AttentionFlop(10 * 5000, 10), 10 * (2048 * a_position + 5000 * 2.0 * 64 * 128));
  EXPECT_EQ(dense.AttentionFlop(10 * 5000, 10), 10 * 5000 * a_position);
  const ModelShape shared = ShapeOf(
      ParseModelConfig(R"({"model_type": "glm_moe_dsa", "index_topk_freq": 4})", "f"), "5.2");
  EXPECT_EQ(shared.index_layers, 21);
  EXPECT_EQ(shared.KvBytesPerToken(), 2u * (78 * 576 + 21 * 128));
}

TEST(ModelShapeTest, RecurrentStateIsOfTheLayersThatHaveIt) {
  // 30 layers with 32 heads of [128, 128] f32, and 3 inputs of a convolution of 8192 channels.
  const ModelShape shape = Preset("qwen3.5-35b-a3b");
  EXPECT_EQ(shape.StateBytesPerSequence(), 30u * 4 * (32 * 128 * 128 + 3 * 8192));
  EXPECT_EQ(shape.StateBytesPerLayer(), shape.StateBytesPerSequence() / 40);
  EXPECT_EQ(Preset("mixtral-8x7b").StateBytesPerSequence(), 0u);
  // A quarter of the layers attends.
  EXPECT_EQ(shape.AttentionFlopPerPosition(), 4.0 * 16 * 256 / 4);
}

TEST(ModelShapeTest, AConfigurationWithLinearAttentionIsItsPreset) {
  const std::string config = R"({
    "model_type": "qwen3_5_moe", "text_config": {"vocab_size": 248320, "num_hidden_layers": 40}})";
  const ModelShape shape = ShapeOf(ParseModelConfig(config, "config.json"), "x");
  const ModelShape preset = Preset("qwen3.5-35b-a3b");
  EXPECT_EQ(shape.TotalParameters(), preset.TotalParameters());
  EXPECT_EQ(shape.DenseParameters(), preset.DenseParameters());
  EXPECT_EQ(shape.KvBytesPerToken(), preset.KvBytesPerToken());
  EXPECT_EQ(shape.StateBytesPerSequence(), preset.StateBytesPerSequence());
}

TEST(ModelShapeTest, DenseAndExpertBytesMakeUpTheModel) {
  const ModelShape shape = Preset("mixtral-8x7b");
  EXPECT_EQ(shape.DenseBytes() + shape.AllExpertBytes(), 2 * shape.TotalParameters());
  EXPECT_EQ(shape.AllExpertBytes(), uint64_t{256} * 352321536);
}

TEST(ModelShapeTest, ShapeOfAConfigurationHasItsDimensions) {
  const ModelShape shape = ShapeOf(LoadModelConfig(MOESAIC_SAMPLE_MODEL_DIR), "sample");
  EXPECT_EQ(shape.num_layers, 8);
  EXPECT_EQ(shape.num_experts, 32);
  EXPECT_EQ(shape.top_k, 4);
  EXPECT_TRUE(shape.tied_embedding);
  EXPECT_EQ(shape.ExpertParameters(), 3u * 192 * 64);
  EXPECT_EQ(shape.KvBytesPerToken(), 2u * 2 * 32 * 2 * 8);
}

TEST(ModelShapeTest, ActiveExpertsGrowFromTopKToAll) {
  EXPECT_EQ(ExpectedActiveExperts(8, 2, 0), 0);
  EXPECT_DOUBLE_EQ(ExpectedActiveExperts(8, 2, 1), 2);
  EXPECT_DOUBLE_EQ(ExpectedActiveExperts(8, 2, 2), 8 * (1 - 0.75 * 0.75));
  EXPECT_DOUBLE_EQ(ExpectedActiveExperts(8, 8, 1), 8);
  EXPECT_NEAR(ExpectedActiveExperts(128, 8, 1000), 128, 1e-9);
}

std::string ShapeRefusal(const std::string& yaml) {
  try {
    ParseModelShape(yaml, "m.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelShapeTest, BadPresetsAreRefusedWithAReason) {
  EXPECT_EQ(ShapeRefusal(""), "m.yaml: num-layers is missing");
  EXPECT_EQ(ShapeRefusal("num-layer: 3"),
            "m.yaml:1: unknown setting 'num-layer'; did you mean "
            "'num-layers'?");
  EXPECT_EQ(ShapeRefusal("zzzzzzzzzz: 3"),
            "m.yaml:1: unknown setting 'zzzzzzzzzz'; see the files beside it");
  const std::string good =
      "{num-layers: 2, hidden-size: 8, vocab-size: 10, num-experts: 4, expert-intermediate: 8, "
      "num-heads: 4, num-kv-heads: 2, head-dim: 4, ";
  EXPECT_EQ(ShapeRefusal(good + "top-k: 2}"), "");
  EXPECT_EQ(ShapeRefusal(good + "top-k: 5}"), "m.yaml: top-k must be from 1 to num-experts");
  EXPECT_EQ(ShapeRefusal(good + "top-k: 2, dense-layers: 2}"),
            "m.yaml: dense-layers leaves no layer with experts");
  EXPECT_EQ(ShapeRefusal(good + "top-k: 2, kv-lora-rank: 2}"),
            "m.yaml: kv-lora-rank needs qk-nope-dim, qk-rope-dim and v-head-dim");
}

}  // namespace
}  // namespace moesaic
