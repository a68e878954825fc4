// Qwen3-Next (80B-A3B, Coder-Next): gated DeltaNet in three of four layers, attention with an
// output gate in the fourth, norms that multiply with 1 + weight, a gated shared expert. The rows
// of a layer's projections are grouped by key heads.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void SetGroupedProjections(const DeltaNetSpec& delta, TensorPlan& plan) {
  const std::string mixer = "model.layers.{layer}.linear_attn.";
  // Of each key head: a query, a key, then values and output gates of its value heads.
  const int64_t values = delta.group() * delta.value_dim;
  const int64_t rows = 2 * delta.key_dim + 2 * values;
  const auto set = [&](TensorSlot slot, int64_t first, int64_t count) {
    plan.Set(slot, mixer + "in_proj_qkvz.weight",
             {EveryNthRow{.step = rows, .first = first, .count = count}});
  };
  set(TensorSlot::kDeltaQ, 0, delta.key_dim);
  set(TensorSlot::kDeltaK, delta.key_dim, delta.key_dim);
  set(TensorSlot::kDeltaV, 2 * delta.key_dim, values);
  set(TensorSlot::kDeltaGate, 2 * delta.key_dim + values, values);
  const int64_t group = delta.group();
  plan.Set(TensorSlot::kDeltaBeta, mixer + "in_proj_ba.weight",
           {EveryNthRow{.step = 2 * group, .first = 0, .count = group}});
  plan.Set(TensorSlot::kDeltaStep, mixer + "in_proj_ba.weight",
           {EveryNthRow{.step = 2 * group, .first = group, .count = group}});
}

void ReadQwen3Next(const JsonFields& config, ModelConfig& model) {
  ReadModel(
      config,
      {.vocab_size = 151936, .hidden_size = 2048, .max_position = 32768, .rms_norm_eps = 1e-6},
      model);
  model.final_norm.plus_one = true;
  const int64_t layers = ReadLayerCount(config, 48);

  const GroupedQuerySpec attention = ReadGatedAttention(config, model);
  const DeltaNetSpec delta = ReadDeltaNet(config, model);
  const std::vector<bool> linear = ReadLinearLayers(config, layers);

  ExpertsSpec experts;
  experts.router = ReadRouter(config, {.experts = 512, .top_k = 10});
  if (config.Bool("norm_topk_prob", true)) experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "moe_intermediate_size", 512);
  experts.shared = ReadMlp(config, "shared_expert_intermediate_size", 512);
  experts.shared_gate = true;
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 5632);

  for (const bool sparse : ReadSparseLayers(config, layers)) {
    const bool is_linear = linear[model.layers.size()];
    model.layers.push_back({model.final_norm, is_linear ? MixerSpec(delta) : MixerSpec(attention),
                            sparse ? LayerMlp(experts) : LayerMlp(dense)});
  }

  model.tensors = CommonTensors();
  SetGatedSharedExpert("model.", model.tensors);
  SetGatedAttention("model.", attention, model.tensors);
  SetDeltaNet("model.", model.tensors);
  SetGroupedProjections(delta, model.tensors);
}

}  // namespace

const ModelFamily& Qwen3NextFamily() {
  static constexpr ModelFamily kFamily = {"Qwen3NextForCausalLM", "qwen3_next", ReadQwen3Next};
  return kFamily;
}

}  // namespace moesaic
