// OLMoE: QK-norm over whole projections, clipped queries, keys and values, every layer sparse.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadOlmoe(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 50304,
             .hidden_size = 2048,
             .max_position = 4096,
             .rms_norm_eps = 1e-5,
             .eos = 50279,
             .pad = 1},
            model);
  const int64_t layers = ReadLayerCount(config, 16);

  GroupedQuerySpec attention = ReadAttention(config, {.heads = 16}, model);
  attention.qk_norm = QkNorm::kProjection;
  attention.qkv_bias = attention.output_bias = config.Bool("attention_bias", false);
  attention.clip_qkv = config.OptionalNumber("clip_qkv", 1e-6, 1e9).value_or(0.0);

  ExpertsSpec experts;
  experts.router = ReadRouter(config, {.experts = 64, .top_k = 8});
  if (config.Bool("norm_topk_prob", false)) experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "intermediate_size", 2048);
  model.layers.assign(static_cast<size_t>(layers), {model.final_norm, attention, experts});
  model.tensors = CommonTensors();
}

}  // namespace

const ModelFamily& OlmoeFamily() {
  static constexpr ModelFamily kFamily = {"OlmoeForCausalLM", "olmoe", ReadOlmoe};
  return kFamily;
}

}  // namespace moesaic
