// Mixtral: every layer sparse, weights of the chosen experts always normalised, names of its own.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadMixtral(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 32000,
             .hidden_size = 4096,
             .max_position = 131072,
             .rms_norm_eps = 1e-5,
             .bos = 1,
             .eos = 2},
            model);
  const int64_t layers = ReadLayerCount(config, 32);

  GroupedQuerySpec attention =
      ReadAttention(config, {.heads = 32, .kv_heads = 8, .rope_theta = 1e6}, model);
  attention.window =
      config.OptionalInt("sliding_window", std::nullopt, 0, kMostPosition).value_or(0);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "num_local_experts", .experts = 8, .top_k = 2});
  experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "intermediate_size", 14336);
  model.layers.assign(static_cast<size_t>(layers), {model.final_norm, attention, experts});

  model.tensors = CommonTensors();
  const std::string moe = "model.layers.{layer}.block_sparse_moe.";
  model.tensors.Set(TensorSlot::kRouter, moe + "gate.weight");
  model.tensors.SetMlp(kExpertSlots, moe + "experts.{expert}.",
                       {"w1.weight", "w3.weight", "w2.weight"});
}

}  // namespace

const ModelFamily& MixtralFamily() {
  static constexpr ModelFamily kFamily = {"MixtralForCausalLM", "mixtral", ReadMixtral};
  return kFamily;
}

}  // namespace moesaic
