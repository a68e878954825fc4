// GLM-4.5, 4.5-Air, 4.6, 4.7: a sigmoid router whose choice is corrected by a bias, an ungated
// shared expert, dense layers first, rotation of a half of each head.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

constexpr int64_t kMostGlmSharedExperts = 1000;

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
  experts.router.score = ScoreFunction::kSigmoid;
  experts.router.correction_bias = true;
  experts.router.group_rule = GroupRule::kTopTwoSum;
  if (config.Bool("norm_topk_prob", true)) {
    experts.router.norm = RouterNorm::kSumPlusEps;
    experts.router.norm_eps = 1e-20;
  }
  experts.router.scale = config.Number("routed_scaling_factor", 1.0, 1e-6, 1e6);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 1408);
  experts.shared = experts.expert;
  experts.shared.width *= config.Int("n_shared_experts", 1, 0, kMostGlmSharedExperts);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 10944);

  const int64_t first_sparse = config.Int("first_k_dense_replace", 1, 0, kMostLayers);
  for (int64_t l = 0; l < layers; ++l) {
    model.layers.push_back(
        {model.final_norm, attention, l < first_sparse ? LayerMlp(dense) : LayerMlp(experts)});
  }

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
