#include "core/config/latent_fields.h"

#include <cmath>
#include <string>

#include "core/base/error.h"
#include "core/config/family_fields.h"
#include "core/config/rope_config.h"

namespace moesaic {
namespace {

// The norms of latents have transformers' default, whatever the model's other norms have.
constexpr double kLatentNormEps = 1e-6;

// What yarn adds to the softmax scale of these models: the square of what its paper multiplies
// queries and keys with (arXiv 2309.00071, equation 22), by mscale_all_dim.
double ScaleOfYarn(const RopeConfig& rope) {
  if (rope.kind != RopeKind::kYarn || rope.mscale_all_dim == 0.0 || rope.factor <= 1.0) return 1.0;
  const double m = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1.0;
  return m * m;
}

}  // namespace

LatentSpec ReadLatent(const JsonFields& config, const LatentDefaults& defaults,
                      const ModelConfig& model) {
  LatentSpec latent;
  latent.heads = config.Int("num_attention_heads", defaults.heads, 1, kMostHeads);
  const int64_t kv_heads =
      config.OptionalInt("num_key_value_heads", latent.heads, 1, kMostHeads).value_or(latent.heads);
  if (kv_heads != latent.heads) {
    config.FailAt("num_key_value_heads",
                  fmt::format("is {}, but latent attention has as many as num_attention_heads, {}",
                              kv_heads, latent.heads),
                  ErrorKind::kUnsupported);
  }
  // null: queries are made of the hidden values.
  latent.q_rank = config.OptionalInt("q_lora_rank", defaults.q_rank, 1, kMostWidth).value_or(0);
  latent.kv_rank = config.Int("kv_lora_rank", 512, 1, kMostHeadDim);
  latent.nope_dim = config.Int("qk_nope_head_dim", defaults.nope_dim, 1, kMostHeadDim);
  latent.rope_dim = config.Int("qk_rope_head_dim", 64, 2, kMostHeadDim);
  latent.value_dim = config.Int("v_head_dim", defaults.value_dim, 1, kMostHeadDim);
  if (latent.rope_dim % 2 != 0) {
    config.FailAt("qk_rope_head_dim",
                  fmt::format("is {}, expected an even number (rotary embedding pairs halves)",
                              latent.rope_dim));
  }
  latent.rope = ParseRopeConfig(config, 1e4, model.max_position);
  if (latent.rope.kind == RopeKind::kDynamicNtk && latent.rope_dim <= 2) {
    config.FailAt("qk_rope_head_dim",
                  "is 2, expected more for dynamic rope, whose formula divides by it less 2");
  }
  latent.norm.eps = kLatentNormEps;
  latent.scale = ScaleOfYarn(latent.rope) / std::sqrt(static_cast<double>(latent.query_dim()));
  return latent;
}

TensorPlan LatentTensors(const LatentSpec& spec, bool in_pairs, const std::string& prefix) {
  TensorPlan plan = CommonTensors(prefix);
  const std::string layer = prefix + "layers.{layer}.";
  const std::string attention = layer + "self_attn.";
  const auto rotated = [&](int64_t rows) -> std::vector<TensorTransform> {
    if (!in_pairs) return {};
    return {RowsInPairs{.head_rows = rows, .passed = rows - spec.rope_dim}};
  };
  if (spec.q_rank > 0) {
    plan.Set(TensorSlot::kQDown, attention + "q_a_proj.weight");
    plan.Set(TensorSlot::kQDownNorm, attention + "q_a_layernorm.weight");
  }
  plan.Set(TensorSlot::kQ, attention + (spec.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"),
           rotated(spec.query_dim()));
  plan.Set(TensorSlot::kKvDown, attention + "kv_a_proj_with_mqa.weight", rotated(spec.row_width()));
  plan.Set(TensorSlot::kKvDownNorm, attention + "kv_a_layernorm.weight");
  plan.Set(TensorSlot::kKvUp, attention + "kv_b_proj.weight");
  plan.Set(TensorSlot::kRouterCorrection, layer + "mlp.gate.e_score_correction_bias");
  plan.SetMlp(kSharedMlpSlots, layer + "mlp.shared_experts.", kProjectionNames);
  return plan;
}

void AddListedLayers(const JsonFields& config, int64_t layers, int64_t dense_layers,
                     const LayerSpec& dense, const ExpertsSpec& experts, ModelConfig& model) {
  const nlohmann::json* types = nullptr;
  if (!config.Absent("mlp_layer_types")) {
    types = config.Find("mlp_layer_types");
    if (!types->is_array() || std::ssize(*types) != layers) {
      config.FailAt("mlp_layer_types",
                    fmt::format("expected a list of num_hidden_layers, {}, names", layers));
    }
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    bool is_dense = layer < dense_layers;
    if (types != nullptr) {
      const nlohmann::json& type = (*types)[static_cast<size_t>(layer)];
      is_dense = type == "dense";
      if (!is_dense && type != "sparse") {
        config.FailAt("mlp_layer_types", fmt::format("layer {} is neither dense nor sparse", layer),
                      ErrorKind::kUnsupported);
      }
    }
    model.layers.push_back(dense);
    if (!is_dense) model.layers.back().mlp = experts;
  }
}

DeepseekParts ReadDeepseekParts(const JsonFields& config, const DeepseekDefaults& defaults,
                                ModelConfig& model) {
  DeepseekParts parts;
  ReadModel(config, defaults.model, model);
  parts.layers = ReadLayerCount(config, defaults.layers);
  RefuseBiases(config);
  RequireString(config, "topk_method", "noaux_tc");
  RequireString(config, "scoring_func", "sigmoid");
  const LatentSpec latent = ReadLatent(config, defaults.latent, model);

  parts.experts.router =
      ReadRouter(config, {.experts_key = "n_routed_experts", .experts = 256, .top_k = 8});
  ReadGroups(config, parts.experts.router, defaults.groups, defaults.groups_kept);
  ReadCorrectedSigmoid(config, 2.5, parts.experts.router);
  parts.experts.expert = ReadMlp(config, "moe_intermediate_size", 2048);
  parts.experts.shared = ReadSharedExperts(config, parts.experts.expert, 1);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", defaults.dense_width);
  parts.dense = {model.final_norm, latent, dense};
  return parts;
}

void RefuseBiases(const JsonFields& config) {
  for (const char* const key : {"attention_bias", "mlp_bias"}) {
    if (config.Bool(key, false)) {
      config.FailAt(key, "is true; only false is supported", ErrorKind::kUnsupported);
    }
  }
}

void RequireString(const JsonFields& config, const char* key, const char* only) {
  const std::string value = config.OptionalString(key).value_or(only);
  if (value == only) return;
  config.FailAt(key, fmt::format("is \"{}\"; only \"{}\" is supported", value.substr(0, 80), only),
                ErrorKind::kUnsupported);
}

}  // namespace moesaic
