// Qwen3-MoE: QK-norm by head, dense layers among the sparse ones, no shared expert.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadQwen3Moe(const JsonFields& config, ModelConfig& model) {
  ReadModel(
      config,
      {.vocab_size = 151936, .hidden_size = 2048, .max_position = 32768, .rms_norm_eps = 1e-6},
      model);
  const int64_t layers = ReadLayerCount(config, 24);

  GroupedQuerySpec attention = ReadAttention(config, {.heads = 32, .kv_heads = 4}, model);
  attention.qk_norm = QkNorm::kPerHead;
  attention.qkv_bias = attention.output_bias = config.Bool("attention_bias", false);
  const int64_t window = config.OptionalInt("sliding_window", 4096, 0, kMostPosition).value_or(0);
  if (config.Bool("use_sliding_window", false)) attention.window = window;

  ExpertsSpec experts;
  experts.router = ReadRouter(config, {.experts = 128, .top_k = 8});
  if (config.Bool("norm_topk_prob", false)) experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "moe_intermediate_size", 768);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 6144);

  for (const bool sparse : ReadSparseLayers(config, layers)) {
    model.layers.push_back(
        {model.final_norm, attention, sparse ? LayerMlp(experts) : LayerMlp(dense)});
  }
  model.tensors = CommonTensors();
}

}  // namespace

const ModelFamily& Qwen3MoeFamily() {
  static constexpr ModelFamily kFamily = {"Qwen3MoeForCausalLM", "qwen3_moe", ReadQwen3Moe};
  return kFamily;
}

}  // namespace moesaic
