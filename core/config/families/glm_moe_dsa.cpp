// GLM-5, 5.1 and 5.2: DeepSeek-V3.2 in other sizes. In 5.2 layers share the positions that an
// indexer chooses.
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {

const ModelFamily& GlmMoeDsaFamily() {
  static constexpr ModelFamily kFamily = {
      "GlmMoeDsaForCausalLM", "glm_moe_dsa", [](const JsonFields& config, ModelConfig& model) {
        ReadIndexedLatent(
            config,
            {.model = {.vocab_size = 154880,
                       .hidden_size = 6144,
                       .max_position = 202752,
                       .rms_norm_eps = 1e-5,
                       .bos = 0,
                       .eos = 1},
             .layers = 78,
             .latent = {.heads = 64, .q_rank = 2048, .nope_dim = 192, .value_dim = 256},
             .dense_width = 12288},
            model);
      }};
  return kFamily;
}

}  // namespace moesaic
