// MiniMax-M2, M2.1, M2.5, M2.7: a sigmoid router whose choice is corrected by a bias, QK-norm over
// whole projections, rotation of a part of each head, Mixtral's names.
#include "core/base/error.h"
#include "core/config/family_fields.h"
#include "core/config/model_family.h"
#include "core/config/rope_config.h"

namespace moesaic {
namespace {

// Settings that no release has otherwise and that transformers does not know.
void CheckFixedSettings(const JsonFields& config) {
  const auto refuse = [&](const char* key, std::string_view only) {
    config.FailAt(key, fmt::format("only {} is supported", only), ErrorKind::kUnsupported);
  };
  if (config.String("scoring_func", "sigmoid") != "sigmoid") refuse("scoring_func", "\"sigmoid\"");
  if (config.String("qk_norm_type", "per_layer") != "per_layer") {
    refuse("qk_norm_type", "\"per_layer\"");
  }
  if (!config.Bool("use_qk_norm", true)) refuse("use_qk_norm", "true");
  if (!config.Bool("use_routing_bias", true)) refuse("use_routing_bias", "true");
  if (config.OptionalInt("shared_intermediate_size", 0, 0, kMostWidth).value_or(0) != 0) {
    refuse("shared_intermediate_size", "0 (no shared expert)");
  }
  for (const int64_t kind : config.Ints("attn_type_list", 0, kMostLayers)) {
    if (kind != 1) refuse("attn_type_list", "1 (softmax attention in all layers)");
  }
}

void ReadMiniMaxM2(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 200064,
             .hidden_size = 3072,
             .max_position = 196608,
             .rms_norm_eps = 1e-6,
             .bos = 200034,
             .eos = 200020},
            model);
  const int64_t layers = ReadLayerCount(config, 62);
  CheckFixedSettings(config);

  GroupedQuerySpec attention = ReadAttention(config,
                                             {.heads = 48,
                                              .kv_heads = 8,
                                              .head_dim = 128,
                                              .rope_theta = 5e6,
                                              .rotary_share = 1.0,
                                              .rotary_dim_key = "rotary_dim"},
                                             model);
  attention.qk_norm = QkNorm::kProjection;

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "num_local_experts", .experts = 256, .top_k = 8});
  experts.router.score = ScoreFunction::kSigmoid;
  experts.router.correction_bias = true;
  experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "intermediate_size", 1536);
  model.layers.assign(static_cast<size_t>(layers), {model.final_norm, attention, experts});

  // Layers behind the last one predict further tokens and are not read.
  model.tensors = CommonTensors();
  const std::string moe = "model.layers.{layer}.block_sparse_moe.";
  model.tensors.Set(TensorSlot::kRouter, moe + "gate.weight");
  model.tensors.Set(TensorSlot::kRouterCorrection, moe + "e_score_correction_bias");
  model.tensors.SetMlp(kExpertSlots, moe + "experts.{expert}.",
                       {"w1.weight", "w3.weight", "w2.weight"});
}

}  // namespace

const ModelFamily& MinimaxM2Family() {
  static constexpr ModelFamily kFamily = {"MiniMaxM2ForCausalLM", "minimax_m2", ReadMiniMaxM2};
  return kFamily;
}

}  // namespace moesaic
