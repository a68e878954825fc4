// DeepSeek-V3.2: DeepSeek-V3, whose attention sees only the index_topk positions that an indexer in
// each layer chooses.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {

void ReadIndexedLatent(const JsonFields& config, const DeepseekDefaults& defaults,
                       ModelConfig& model) {
  const DeepseekParts parts = ReadDeepseekParts(config, defaults, model);
  // Up to here the indexer chooses every position: its tensors (self_attn.indexer) change nothing
  // and are not read.
  model.most_context = config.Int("index_topk", 2048, 1, kMostPosition);
  AddListedLayers(config, parts.layers, config.Int("first_k_dense_replace", 3, 0, kMostLayers),
                  parts.dense, parts.experts, model);
  model.tensors = LatentTensors(parts.latent(), true);
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
