// Qwen3.5 and 3.6 MoE (35B-A3B, 122B-A10B, 397B-A17B): the layers of Qwen3-Next with projections in
// plain order, in a configuration that has a part for text and one for vision, which is not served.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

constexpr char kTextPrefix[] = "model.language_model.";

bool IsFp8(const JsonFields& config) {
  if (config.Absent("quantization_config")) return false;
  const JsonFields fields(config.Object("quantization_config"), config.file(),
                          "quantization_config.");
  return fields.String("quant_method", "") == "fp8";
}

void SetPlainProjections(const std::string& prefix, const DeltaNetSpec& delta, TensorPlan& plan) {
  const std::string mixer = prefix + "layers.{layer}.linear_attn.";
  const auto set = [&](TensorSlot slot, int64_t first, int64_t count) {
    plan.Set(slot, mixer + "in_proj_qkv.weight",
             {EveryNthRow{.step = delta.channels(), .first = first, .count = count}});
  };
  set(TensorSlot::kDeltaQ, 0, delta.key_width());
  set(TensorSlot::kDeltaK, delta.key_width(), delta.key_width());
  set(TensorSlot::kDeltaV, 2 * delta.key_width(), delta.value_width());
  plan.Set(TensorSlot::kDeltaGate, mixer + "in_proj_z.weight");
  plan.Set(TensorSlot::kDeltaBeta, mixer + "in_proj_b.weight");
  plan.Set(TensorSlot::kDeltaStep, mixer + "in_proj_a.weight");
}

// One tensor for the gates and ups of all experts of a layer, and one for the downs.
void SetExpertsInStacks(const ExpertsSpec& experts, TensorPlan& plan) {
  const std::string mlp = std::string(kTextPrefix) + "layers.{layer}.mlp.experts.";
  const StackOf stack = {.count = experts.router.experts};
  SetJoinedGateUp(kExpertSlots, mlp + "gate_up_proj", experts.expert.width, stack, plan);
  plan.Set(TensorSlot::kExpertDown, mlp + "down_proj", {stack});
}

}  // namespace

void ReadQwen35Text(const JsonFields& config, const std::string& prefix, ModelConfig& model) {
  ReadModel(
      config,
      {.vocab_size = 248320, .hidden_size = 2048, .max_position = 32768, .rms_norm_eps = 1e-6},
      model);
  model.final_norm.plus_one = true;
  const int64_t layers = ReadLayerCount(config, 40);

  const GroupedQuerySpec attention = ReadGatedAttention(config, model);
  const DeltaNetSpec delta = ReadDeltaNet(config, model);

  ExpertsSpec experts;
  experts.router = ReadRouter(config, {.experts = 256, .top_k = 8});
  experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "moe_intermediate_size", 512);
  experts.shared = ReadMlp(config, "shared_expert_intermediate_size", 512);
  experts.shared_gate = true;

  for (const bool linear : ReadLinearLayers(config, layers)) {
    model.layers.push_back(
        {model.final_norm, linear ? MixerSpec(delta) : MixerSpec(attention), experts});
  }

  model.tensors = CommonTensors(prefix);
  SetGatedSharedExpert(prefix, model.tensors);
  SetGatedAttention(prefix, attention, model.tensors);
  SetDeltaNet(prefix, model.tensors);
  SetPlainProjections(prefix, delta, model.tensors);
}

namespace {

void ReadQwen35Moe(const JsonFields& outer, ModelConfig& model) {
  const nlohmann::json text = TextConfig(outer);
  ReadQwen35Text(JsonFields(text, outer.file(), "text_config."), kTextPrefix, model);
  // Checkpoints in fp8 have a tensor for each matrix of an expert.
  if (!IsFp8(outer)) SetExpertsInStacks(model.experts(), model.tensors);
}

}  // namespace

const ModelFamily& Qwen35MoeFamily() {
  static constexpr ModelFamily kFamily = {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe",
                                          ReadQwen35Moe};
  return kFamily;
}

}  // namespace moesaic
