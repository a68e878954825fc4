// DeepSeek-V3.2: DeepSeek-V3, whose attention sees only the index_topk positions that an indexer in
// each layer chooses.
#include <string>
#include <utility>
#include <variant>

#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {

void ReadIndexedLatent(const JsonFields& config, const DeepseekDefaults& defaults,
                       const IndexerDefaults& indexer_defaults, ModelConfig& model) {
  DeepseekParts parts = ReadDeepseekParts(config, defaults, model);
  LatentSpec& latent = std::get<LatentSpec>(parts.dense.mixer);
  if (latent.q_rank == 0) {
    config.FailAt("q_lora_rank", "is null, but the indexer's queries are made of what it makes",
                  ErrorKind::kUnsupported);
  }
  latent.top_k = config.Int("index_topk", 2048, 1, kMostPosition);
  latent.indexer = {
      .heads = config.Int("index_n_heads", indexer_defaults.heads, 1, kMostHeads),
      .dim = config.Int("index_head_dim", 128, 1, kMostHeadDim),
      .rope_form = indexer_defaults.rope_form,
  };
  if (latent.indexer.dim < latent.rope_dim) {
    config.FailAt("index_head_dim",
                  fmt::format("is {}, less than the {} values of qk_rope_head_dim that are rotated",
                              latent.indexer.dim, latent.rope_dim));
  }
  AddListedLayers(config, parts.layers, config.Int("first_k_dense_replace", 3, 0, kMostLayers),
                  parts.dense, parts.experts, model);
  model.tensors = LatentTensors(latent, true);
  const std::string indexer = "model.layers.{layer}.self_attn.indexer.";
  for (const auto& [slot, name] :
       {std::pair(TensorSlot::kIndexQ, "wq_b.weight"), std::pair(TensorSlot::kIndexK, "wk.weight"),
        std::pair(TensorSlot::kIndexKNorm, "k_norm.weight"),
        std::pair(TensorSlot::kIndexKNormBias, "k_norm.bias"),
        std::pair(TensorSlot::kIndexHeads, "weights_proj.weight")}) {
    model.tensors.Set(slot, indexer + name);
  }
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
                          {.heads = 64, .rope_form = RopeForm::kHalf}, model);
      }};
  return kFamily;
}

}  // namespace moesaic
