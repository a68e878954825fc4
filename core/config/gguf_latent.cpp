#include "core/config/gguf_latent.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/family_fields.h"

namespace moesaic {
namespace {

using nlohmann::json;

// Attention and experts. key_length and value_length are those of the kept rows, and there is one
// head of them; old files have those of the heads.
void ReadLatentParts(const GgufFields& fields, json& config) {
  for (const char* const key : {"num_key_value_heads", "head_dim", "partial_rotary_factor"}) {
    config.erase(key);
  }
  const auto length = [&](std::string_view key) {
    const std::string of_heads = fmt::format("attention.{}_mla", key);
    return fields.Has(of_heads) ? fields.Int(of_heads, 2, kMostHeadDim)
                                : fields.Int(fmt::format("attention.{}", key), 2, kMostHeadDim);
  };
  const int64_t rotated = fields.Int("rope.dimension_count", 2, length("key_length") - 1);
  config["qk_rope_head_dim"] = rotated;
  config["qk_nope_head_dim"] = length("key_length") - rotated;
  config["v_head_dim"] = length("value_length");
  config["kv_lora_rank"] = fields.Int("attention.kv_lora_rank", 1, kMostHeadDim);
  const int64_t q_rank = fields.Int("attention.q_lora_rank", 0, 0, kMostWidth);
  config["q_lora_rank"] = q_rank > 0 ? json(q_rank) : json(nullptr);
  json& rope = config["rope_scaling"];
  if (rope.is_object() && rope["rope_type"] == "yarn") {
    // All of yarn's factor is in the scale of attention, by a tenth of mscale_all_dim.
    rope["attention_factor"] = 1.0;
    rope["mscale_all_dim"] = 10 * fields.Number("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e5);
  }
  config["n_routed_experts"] = fields.Experts();
  config["moe_intermediate_size"] = fields.ExpertWidth();
  config["intermediate_size"] = fields.DenseWidth();
  config["n_shared_experts"] = fields.Int("expert_shared_count", 0, 0, 1000);
  config["first_k_dense_replace"] = fields.Int("leading_dense_block_count", 0, 0, kMostLayers);
  const int64_t groups = fields.Int("expert_group_count", 1, 1, kMostExperts);
  config["n_group"] = groups;
  config["topk_group"] = fields.Int("expert_group_used_count", groups, 1, kMostExperts);
  config["norm_topk_prob"] = fields.NormalisedWeights(false);
  config["routed_scaling_factor"] = fields.Number("expert_weights_scale", 1.0, 1e-6, 1e6);
}

}  // namespace

void ReadGgufDeepseek2(const GgufFields& fields, json& config) {
  constexpr int64_t kSoftmax = 1;  // llama.cpp's enum of gating functions; what old files mean
  constexpr int64_t kSigmoid = 2;
  const int64_t gating = fields.Int("expert_gating_func", kSoftmax, 0, 100);
  const bool v3 = gating == kSigmoid;
  if (!v3 && gating != kSoftmax && gating != 0) {
    fields.Unsupported("expert_gating_func", "is neither 1 (softmax) nor 2 (sigmoid)");
  }
  const char* const version = v3 ? "3" : "2";
  config["architectures"] = {fmt::format("DeepseekV{}ForCausalLM", version)};
  config["model_type"] = fmt::format("deepseek_v{}", version);
  ReadLatentParts(fields, config);
  if (!v3) config["topk_method"] = config["n_group"] > 1 ? "group_limited_greedy" : "greedy";
}

void ReadGgufDeepseek32(const GgufFields& fields, json& config) {
  fields.RequireSigmoidRouter();
  ReadLatentParts(fields, config);
  config["index_n_heads"] = fields.Int("attention.indexer.head_count", 1, kMostHeads);
  config["index_head_dim"] = fields.Int("attention.indexer.key_length", 1, kMostHeadDim);
  config["index_topk"] = fields.Int("attention.indexer.top_k", 1, kMostPosition);
}

void ReadGgufGlmDsa(const GgufFields& fields, json& config) {
  ReadGgufDeepseek32(fields, config);
  // Newer files say which layers have an indexer; of older ones the tensors tell.
  constexpr std::string_view kTypes = "attention.indexer.types";
  const int64_t layers = config["num_hidden_layers"];
  std::vector<bool> flags;
  if (fields.Has(kTypes)) flags = fields.FlagsOfLayers(kTypes, layers);
  json types = json::array();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool full = flags.empty() ? fields.HasTensor(layer, "indexer.attn_k.weight")
                                    : flags[static_cast<size_t>(layer)];
    types.push_back(full ? "full" : "shared");
  }
  config["indexer_types"] = std::move(types);
}

}  // namespace moesaic
