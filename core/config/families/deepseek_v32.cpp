// DeepSeek-V3.2: DeepSeek-V3, whose attention sees only the index_topk positions that an indexer in
// each layer chooses.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {

void ReadIndexedLatent(const JsonFields& config, const IndexedDefaults& defaults,
                       ModelConfig& model) {
  ReadModel(config, defaults.model, model);
  const int64_t layers = ReadLayerCount(config, defaults.layers);
  RefuseBiases(config);
  RequireString(config, "topk_method", "noaux_tc");
  RequireString(config, "scoring_func", "sigmoid");
  const LatentSpec latent = ReadLatent(config, defaults.latent, model);
  // Up to here the indexer chooses every position: its tensors (self_attn.indexer) change nothing
  // and are not read.
  model.most_context = config.Int("index_topk", 2048, 1, kMostPosition);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "n_routed_experts", .experts = 256, .top_k = 8});
  ReadGroups(config, experts.router, defaults.groups, defaults.groups_kept);
  ReadCorrectedSigmoid(config, 2.5, experts.router);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 2048);
  experts.shared = ReadSharedExperts(config, experts.expert, 1);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", defaults.dense_width);
  for (const bool is_dense : ReadDenseLayers(config, layers, 3)) {
    model.layers.push_back(
        {model.final_norm, latent, is_dense ? LayerMlp(dense) : LayerMlp(experts)});
  }
  model.tensors = LatentTensors(latent, true);
}

const ModelFamily& DeepseekV32Family() {
  static constexpr ModelFamily kFamily = {
      "DeepseekV32ForCausalLM", "deepseek_v32", [](const JsonFields& config, ModelConfig& model) {
        ReadIndexedLatent(config,
                          {.model = {.vocab_size = 129280,
                                     .hidden_size = 7168,
                                     .max_position = 163840,
                                     .bos = 0,
                                     .eos = 1},
                           .layers = 61,
                           .latent = {.heads = 128, .q_rank = 1536},
                           .groups = 8,
                           .groups_kept = 4,
                           .dense_width = 18432},
                          model);
      }};
  return kFamily;
}

}  // namespace moesaic
