// gpt-oss (20b, 120b): sinks beside the keys, windows in every other layer, biases everywhere, a
// router whose weights are the softmax of the chosen logits, experts with a clamped SwiGLU whose
// matrices are stacked in one tensor a layer, gate and up rows by turns.
#include "core/base/error.h"
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

// What transformers takes for a configuration that says nothing of rope.
RopeConfig DefaultRope(double theta) {
  RopeConfig rope;
  rope.kind = RopeKind::kYarn;
  rope.theta = theta;
  rope.factor = 32.0;
  rope.original_max_position = 4096;
  rope.truncate = false;
  return rope;
}

bool IsMxfp4(const JsonFields& config) {
  if (config.Absent("quantization_config")) return false;
  const JsonFields fields(config.Object("quantization_config"), config.file(),
                          "quantization_config.");
  return fields.String("quant_method", "") == "mxfp4";
}

// Of layer {layer}, of an expert of the stack.
void SetExpertTensors(const ExpertsSpec& experts, bool mxfp4, TensorPlan& plan) {
  const std::string mlp = "model.layers.{layer}.mlp.experts.";
  const TensorTransform stack = StackOf{.count = experts.router.experts};
  const TensorTransform stored =
      mxfp4 ? TensorTransform(Mxfp4Blocks{}) : TensorTransform(Transposed{});
  const TensorTransform gates = EveryNthRow{.step = 2, .first = 0};
  const TensorTransform ups = EveryNthRow{.step = 2, .first = 1};
  plan.Set(TensorSlot::kExpertGate, mlp + "gate_up_proj", {stack, stored, gates});
  plan.Set(TensorSlot::kExpertUp, mlp + "gate_up_proj", {stack, stored, ups});
  plan.Set(TensorSlot::kExpertDown, mlp + "down_proj", {stack, stored});
  plan.Set(TensorSlot::kExpertGateBias, mlp + "gate_up_proj_bias", {stack, gates});
  plan.Set(TensorSlot::kExpertUpBias, mlp + "gate_up_proj_bias", {stack, ups});
  plan.Set(TensorSlot::kExpertDownBias, mlp + "down_proj_bias", {stack});
}

void ReadGptOss(const JsonFields& config, ModelConfig& model) {
  ReadModel(
      config,
      {.vocab_size = 201088, .hidden_size = 2880, .max_position = 131072, .rms_norm_eps = 1e-5},
      model);
  const int64_t layers = ReadLayerCount(config, 36);

  GroupedQuerySpec attention = ReadAttention(
      config, {.heads = 64, .kv_heads = 8, .head_dim = 64, .rope_theta = 150000.0}, model);
  if (config.Absent("rope_scaling") && config.Absent("rope_parameters")) {
    attention.rope = DefaultRope(attention.rope.theta);
  }
  attention.qkv_bias = attention.output_bias = config.Bool("attention_bias", true);
  attention.sinks = true;
  const int64_t window = config.OptionalInt("sliding_window", 128, 0, kMostPosition).value_or(0);
  std::vector<bool> every_other(static_cast<size_t>(layers));
  for (size_t l = 0; l < every_other.size(); l += 2) every_other[l] = true;
  const std::vector<bool> slides = ReadSlidingLayers(config, layers).value_or(every_other);

  ExpertsSpec experts;
  experts.router =
      ReadRouter(config, {.experts_key = "num_local_experts", .experts = 128, .top_k = 4});
  experts.router.score = ScoreFunction::kLogit;
  experts.router.logit_bias = true;
  experts.router.norm = RouterNorm::kSoftmax;
  experts.expert.width = config.Int("intermediate_size", 2880, 1, kMostWidth);
  // hidden_act is "silu" and not what the experts do.
  experts.expert.activation = Activation::kClampedSwiglu;
  experts.expert.swiglu_alpha = config.Number("swiglu_alpha", 1.702, 1e-3, 1e3);
  experts.expert.swiglu_limit = config.Number("swiglu_limit", 7.0, 1e-3, 1e6);
  experts.expert.bias = true;

  for (int64_t l = 0; l < layers; ++l) {
    attention.window = slides[static_cast<size_t>(l)] ? window : 0;
    model.layers.push_back({model.final_norm, attention, experts});
  }

  model.tensors = CommonTensors();
  const std::string layer = "model.layers.{layer}.";
  model.tensors.Set(TensorSlot::kSinks, layer + "self_attn.sinks");
  model.tensors.Set(TensorSlot::kRouter, layer + "mlp.router.weight");
  model.tensors.Set(TensorSlot::kRouterBias, layer + "mlp.router.bias");
  SetExpertTensors(experts, IsMxfp4(config), model.tensors);
}

}  // namespace

const ModelFamily& GptOssFamily() {
  static constexpr ModelFamily kFamily = {"GptOssForCausalLM", "gpt_oss", ReadGptOss};
  return kFamily;
}

}  // namespace moesaic
