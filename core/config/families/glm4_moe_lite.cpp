// GLM-4.7-Flash: DeepSeek-V3's attention and router in other sizes; which layers are dense is a
// list.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadGlm4MoeLite(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 154880,
             .hidden_size = 2048,
             .max_position = 202752,
             .rms_norm_eps = 1e-5,
             .bos = 0,
             .eos = 1},
            model);
  const int64_t layers = ReadLayerCount(config, 47);
  RefuseBiases(config);
  const LatentSpec latent =
      ReadLatent(config, {.heads = 20, .q_rank = 768, .nope_dim = 192, .value_dim = 256}, model);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "n_routed_experts", .experts = 64, .top_k = 4});
  ReadGroups(config, experts.router);
  ReadCorrectedSigmoid(config, 1.8, experts.router);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 1536);
  experts.shared = ReadSharedExperts(config, experts.expert, 1);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 10240);
  AddListedLayers(config, layers, 1, {model.final_norm, latent, dense}, experts, model);
  model.tensors = LatentTensors(latent, config.Bool("rope_interleave", true));
}

}  // namespace

const ModelFamily& Glm4MoeLiteFamily() {
  static constexpr ModelFamily kFamily = {"Glm4MoeLiteForCausalLM", "glm4_moe_lite",
                                          ReadGlm4MoeLite};
  return kFamily;
}

}  // namespace moesaic
