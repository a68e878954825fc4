// Granite MoE (Granite 3.0 and 3.1: 1B-A400M and 3B-A800M; PowerMoE): experts stacked in one tensor
// a layer, a router whose weights are the softmax of the chosen logits, and four numbers that scale
// embeddings, attention's scores, what is added to the residual stream, and logits.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

double ReadMultiplier(const JsonFields& config, const char* key) {
  return config.Number(key, 1.0, 1e-9, 1e9);
}

}  // namespace

void ReadGraniteMoe(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 32000,
             .hidden_size = 4096,
             .max_position = 2048,
             .rms_norm_eps = 1e-6,
             .bos = 1,
             .eos = 2},
            model);
  const int64_t layers = ReadLayerCount(config, 32);
  model.embedding_scale = ReadMultiplier(config, "embedding_multiplier");
  model.logit_divisor = ReadMultiplier(config, "logits_scaling");
  const double residual_scale = ReadMultiplier(config, "residual_multiplier");

  GroupedQuerySpec attention = ReadAttention(config, {.heads = 32}, model);
  attention.qkv_bias = attention.output_bias = config.Bool("attention_bias", false);
  attention.scale = ReadMultiplier(config, "attention_multiplier");

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "num_local_experts", .experts = 8, .top_k = 2});
  experts.router.score = ScoreFunction::kLogit;
  experts.router.norm = RouterNorm::kSoftmax;
  experts.router.scale = residual_scale;
  experts.expert = ReadMlp(config, "intermediate_size", 11008);
  model.layers.assign(static_cast<size_t>(layers),
                      {model.final_norm, attention, experts, residual_scale});

  model.tensors = CommonTensors();
  const std::string moe = "model.layers.{layer}.block_sparse_moe.";
  model.tensors.Set(TensorSlot::kRouter, moe + "router.layer.weight");
  const StackOf stack = {.count = experts.router.experts};
  SetJoinedGateUp(kExpertSlots, moe + "input_linear.weight", experts.expert.width, stack,
                  model.tensors);
  model.tensors.Set(TensorSlot::kExpertDown, moe + "output_linear.weight", {stack});
}

const ModelFamily& GraniteMoeFamily() {
  static constexpr ModelFamily kFamily = {"GraniteMoeForCausalLM", "granitemoe", ReadGraniteMoe};
  return kFamily;
}

}  // namespace moesaic
