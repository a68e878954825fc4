// DeepSeek-V3, R1, V3.1, Moonlight and, under a model_type of its own, Kimi-K2: latent attention, a
// sigmoid router whose choice is corrected by a bias and limited to the best groups of experts, an
// ungated shared expert, dense layers first.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {

void ReadDeepseekV3(const JsonFields& config, const std::string& prefix, ModelConfig& model) {
  const DeepseekParts parts = ReadDeepseekParts(
      config,
      {.model =
           {.vocab_size = 129280, .hidden_size = 7168, .max_position = 4096, .bos = 0, .eos = 1},
       .layers = 61,
       .latent = {.heads = 128, .q_rank = 1536},
       .groups = 8,
       .groups_kept = 4,
       .dense_width = 18432},
      model);
  if (config.Int("moe_layer_freq", 1, 0, kMostLayers) != 1) {
    config.FailAt("moe_layer_freq", "only 1 is supported", ErrorKind::kUnsupported);
  }
  AddLayersDenseFirst(config, parts.layers, 3, parts.dense, parts.experts, model);
  model.tensors = LatentTensors(
      parts.latent(), config.OptionalBool("rope_interleave").value_or(true), prefix + "model.");
  model.tensors.Set(TensorSlot::kHead, prefix + "lm_head.weight");
}

const ModelFamily& DeepseekV3Family() {
  static constexpr ModelFamily kFamily = {
      "DeepseekV3ForCausalLM", "deepseek_v3",
      [](const JsonFields& config, ModelConfig& model) { ReadDeepseekV3(config, "", model); },
      "kimi_k2"};
  return kFamily;
}

}  // namespace moesaic
