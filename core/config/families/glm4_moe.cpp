// GLM-4.5, 4.5-Air, 4.6, 4.7: a sigmoid router whose choice is corrected by a bias, an ungated
// shared expert, dense layers first, rotation of a half of each head.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadGlm4Moe(const JsonFields& config, ModelConfig& model) {
  ReadModel(
      config,
      {.vocab_size = 151552, .hidden_size = 4096, .max_position = 131072, .rms_norm_eps = 1e-5},
      model);
  const int64_t layers = ReadLayerCount(config, 46);

  GroupedQuerySpec attention =
      ReadAttention(config, {.heads = 96, .kv_heads = 8, .rotary_share = 0.5}, model);
  if (config.Bool("use_qk_norm", false)) attention.qk_norm = QkNorm::kPerHead;
  attention.qkv_bias = config.Bool("attention_bias", false);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "n_routed_experts", .experts = 128, .top_k = 8});
  ReadGroups(config, experts.router);
  ReadCorrectedSigmoid(config, 1.0, experts.router);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 1408);
  experts.shared = ReadSharedExperts(config, experts.expert, 1);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 10944);
  AddLayersDenseFirst(config, layers, 1, {model.final_norm, attention, dense}, experts, model);

  // Layers behind the last one predict further tokens and are not read.
  model.tensors = CommonTensors();
  const std::string mlp = "model.layers.{layer}.mlp.";
  model.tensors.Set(TensorSlot::kRouterCorrection, mlp + "gate.e_score_correction_bias");
  model.tensors.SetMlp(kSharedMlpSlots, mlp + "shared_experts.", kProjectionNames);
}

}  // namespace

const ModelFamily& Glm4MoeFamily() {
  static constexpr ModelFamily kFamily = {"Glm4MoeForCausalLM", "glm4_moe", ReadGlm4Moe};
  return kFamily;
}

}  // namespace moesaic
