// Snowflake Arctic (480B-A17B): the attention and the experts of Mixtral beside each other. Experts
// read what the layer reads, and a dense MLP as wide as the model what attention has made of it.
#include <array>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

constexpr std::array<const char*, 3> kMatrices = {"w1.weight", "w3.weight", "w2.weight"};

// Defaults are those of the checkpoint's own configuration_arctic.py; transformers has no Arctic.
void ReadArctic(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 32000,
             .hidden_size = 4096,
             .max_position = 4096,
             .rms_norm_eps = 1e-5,
             .bos = 1,
             .eos = 2},
            model);
  const int64_t layers = ReadLayerCount(config, 32);
  if (!config.Absent("quantization")) {
    config.FailAt("quantization", "is not null; expected a checkpoint that is not quantised",
                  ErrorKind::kUnsupported);
  }
  GroupedQuerySpec attention = ReadAttention(config, {.heads = 32, .rope_theta = 1e6}, model);
  attention.window =
      config.OptionalInt("sliding_window", std::nullopt, 0, kMostPosition).value_or(0);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "num_local_experts", .experts = 8, .top_k = 1});
  experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "intermediate_size", 14336);
  // The checkpoint's code reads the first key, vLLM the second; releases have both.
  experts.read_input = config.OptionalBool("parallel_attn_mlp_res")
                           .value_or(config.OptionalBool("use_residual").value_or(false));
  if (experts.read_input) {
    experts.shared = experts.expert;
    experts.shared.width = model.hidden_size;
  }
  const int64_t step = config.Int("moe_layer_frequency", 2, 1, kMostLayers);
  for (int64_t l = 0; l < layers; ++l) {
    const bool sparse = (l + 1) % step == 0;
    model.layers.push_back(
        {model.final_norm, attention, sparse ? LayerMlp(experts) : LayerMlp(experts.expert)});
  }

  model.tensors = CommonTensors();
  const std::string layer = "model.layers.{layer}.";
  const std::string moe = layer + "block_sparse_moe.";
  model.tensors.Set(TensorSlot::kRouter, moe + "gate.weight");
  model.tensors.SetMlp(kExpertSlots, moe + "experts.{expert}.", kMatrices);
  model.tensors.SetMlp(kDenseMlpSlots, moe + "mlp.", kMatrices);
  model.tensors.SetMlp(kSharedMlpSlots, layer + "residual_mlp.", kMatrices);
  model.tensors.Set(TensorSlot::kMlpNorm, layer + "residual_layernorm.weight");
}

}  // namespace

const ModelFamily& ArcticFamily() {
  static constexpr ModelFamily kFamily = {"ArcticForCausalLM", "arctic", ReadArctic};
  return kFamily;
}

}  // namespace moesaic
