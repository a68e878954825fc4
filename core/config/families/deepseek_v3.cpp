// DeepSeek-V3, R1, V3.1, Moonlight and, under a model_type of its own, Kimi-K2: latent attention, a
// sigmoid router whose choice is corrected by a bias and limited to the best groups of experts, an
// ungated shared expert, dense layers first.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {

void ReadDeepseekV3(const JsonFields& config, const std::string& prefix, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 129280, .hidden_size = 7168, .max_position = 4096, .bos = 0, .eos = 1},
            model);
  const int64_t layers = ReadLayerCount(config, 61);
  RefuseBiases(config);
  RequireString(config, "topk_method", "noaux_tc");
  RequireString(config, "scoring_func", "sigmoid");
  const LatentSpec latent = ReadLatent(config, {.heads = 128, .q_rank = 1536}, model);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "n_routed_experts", .experts = 256, .top_k = 8});
  ReadGroups(config, experts.router, 8, 4);
  ReadCorrectedSigmoid(config, 2.5, experts.router);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 2048);
  experts.shared = ReadSharedExperts(config, experts.expert, 1);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 18432);
  if (config.Int("moe_layer_freq", 1, 0, kMostLayers) != 1) {
    config.FailAt("moe_layer_freq", "only 1 is supported", ErrorKind::kUnsupported);
  }
  AddLayersDenseFirst(config, layers, 3, {model.final_norm, latent, dense}, experts, model);
  model.tensors = LatentTensors(latent, config.OptionalBool("rope_interleave").value_or(true),
                                prefix + "model.");
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
