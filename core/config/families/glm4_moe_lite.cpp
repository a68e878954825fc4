// GLM-4.7-Flash: DeepSeek-V3's attention and router in other sizes; which layers are dense is a
// list.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

// mlp_layer_types; without it the first layer alone is dense.
std::vector<bool> ReadDenseLayers(const JsonFields& config, int64_t layers) {
  std::vector<bool> dense(static_cast<size_t>(layers));
  dense[0] = true;
  if (config.Absent("mlp_layer_types")) return dense;
  const nlohmann::json& types = *config.Find("mlp_layer_types");
  if (!types.is_array() || types.size() != dense.size()) {
    config.FailAt("mlp_layer_types",
                  fmt::format("expected a list of num_hidden_layers, {}, names", layers));
  }
  for (size_t layer = 0; layer < dense.size(); ++layer) {
    dense[layer] = types[layer] == "dense";
    if (!dense[layer] && types[layer] != "sparse") {
      config.FailAt("mlp_layer_types", fmt::format("layer {} is neither dense nor sparse", layer),
                    ErrorKind::kUnsupported);
    }
  }
  return dense;
}

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
  for (const bool is_dense : ReadDenseLayers(config, layers)) {
    model.layers.push_back(
        {model.final_norm, latent, is_dense ? LayerMlp(dense) : LayerMlp(experts)});
  }
  model.tensors = LatentTensors(latent, config.Bool("rope_interleave", true));
}

}  // namespace

const ModelFamily& Glm4MoeLiteFamily() {
  static constexpr ModelFamily kFamily = {"Glm4MoeLiteForCausalLM", "glm4_moe_lite",
                                          ReadGlm4MoeLite};
  return kFamily;
}

}  // namespace moesaic
