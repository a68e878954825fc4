// DBRX (132B-A36B): LayerNorms without bias, clipped queries, keys and values of one matrix, and
// the experts of a layer one below the other in one matrix. Its configuration has names of its own.
#include <string>

#include "core/base/error.h"
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

using nlohmann::json;

// {} where the key is missing.
JsonFields Part(const JsonFields& config, const char* key) {
  static const json kNone = json::object();
  const json& value = config.Absent(key) ? kNone : config.Object(key);
  return JsonFields(value, config.file(), std::string(key) + ".");
}

// The configuration under the usual names of keys.
json UsualNames(const JsonFields& config, const JsonFields& attention, const JsonFields& ffn) {
  json usual = config.value();
  const auto take = [&](const JsonFields& from, const char* key, const char* usual_key) {
    if (const json* const value = from.Find(key)) usual[usual_key] = *value;
  };
  take(config, "d_model", "hidden_size");
  take(config, "n_heads", "num_attention_heads");
  take(config, "n_layers", "num_hidden_layers");
  take(config, "max_seq_len", "max_position_embeddings");
  take(attention, "kv_n_heads", "num_key_value_heads");
  take(ffn, "moe_num_experts", "num_experts");
  take(ffn, "moe_top_k", "num_experts_per_tok");
  take(ffn, "ffn_hidden_size", "intermediate_size");
  // transformers 5 has it at the top, where releases do not.
  if (config.Absent("rope_theta")) take(attention, "rope_theta", "rope_theta");
  if (!ffn.Absent("ffn_act_fn")) {
    const JsonFields activation(ffn.Object("ffn_act_fn"), ffn.file(), "ffn_config.ffn_act_fn.");
    take(activation, "name", "hidden_act");
  }
  return usual;
}

RouterSpec ReadDbrxRouter(const JsonFields& usual, const JsonFields& ffn) {
  RouterSpec router = ReadRouter(usual, {.experts = 4, .top_k = 1});
  constexpr char kNorm[] = "moe_normalize_expert_weights";
  if (ffn.Find(kNorm) != nullptr && ffn.Absent(kNorm)) return router;  // null: none
  const double p = ffn.Number(kNorm, 1.0, 0.0, 1e9);
  if (p != 1.0) {
    ffn.FailAt(kNorm,
               fmt::format("is {}; only 1 (weights are divided by their sum) is supported", p),
               ErrorKind::kUnsupported);
  }
  router.norm = RouterNorm::kSum;
  return router;
}

TensorPlan DbrxTensors(const GroupedQuerySpec& attention, int64_t experts) {
  TensorPlan plan;
  plan.Set(TensorSlot::kEmbedding, "transformer.wte.weight");
  plan.Set(TensorSlot::kFinalNorm, "transformer.norm_f.weight");
  plan.Set(TensorSlot::kHead, "lm_head.weight");
  const std::string block = "transformer.blocks.{layer}.";
  const std::string mixer = block + "norm_attn_norm.";
  plan.Set(TensorSlot::kInputNorm, mixer + "norm_1.weight");
  plan.Set(TensorSlot::kPostAttentionNorm, mixer + "norm_2.weight");
  SetJoinedQkv(mixer + "attn.Wqkv.weight", attention, plan);
  plan.Set(TensorSlot::kOutput, mixer + "attn.out_proj.weight");
  plan.Set(TensorSlot::kRouter, block + "ffn.router.layer.weight");
  const std::string mlp = block + "ffn.experts.mlp.";
  const TensorTransform stack = StackOf{.count = experts, .one_below = true};
  plan.Set(TensorSlot::kExpertGate, mlp + "w1", {stack});
  plan.Set(TensorSlot::kExpertUp, mlp + "v1", {stack});
  plan.Set(TensorSlot::kExpertDown, mlp + "w2", {stack, Transposed{}});
  return plan;
}

void ReadDbrx(const JsonFields& config, ModelConfig& model) {
  const JsonFields attention_config = Part(config, "attn_config");
  const JsonFields ffn_config = Part(config, "ffn_config");
  const json usual_names = UsualNames(config, attention_config, ffn_config);
  const JsonFields usual(usual_names, config.file());
  ReadModel(usual, {.vocab_size = 32000, .hidden_size = 2048, .max_position = 2048}, model);
  const int64_t layers = ReadLayerCount(usual, 24);
  // That of torch's LayerNorm; config.json has no such key, GGUF files do.
  model.final_norm.eps = config.Number("layer_norm_epsilon", 1e-5, 0.0, 1.0);
  model.final_norm.centred = true;

  GroupedQuerySpec attention = ReadAttention(usual, {.heads = 16, .kv_heads = 1}, model);
  attention.clip_qkv = attention_config.OptionalNumber("clip_qkv", 0.0, 1e9).value_or(0.0);

  ExpertsSpec experts;
  experts.router = ReadDbrxRouter(usual, ffn_config);
  experts.expert = ReadMlp(usual, "intermediate_size", 3584);
  model.layers.assign(static_cast<size_t>(layers), {model.final_norm, attention, experts});
  model.tensors = DbrxTensors(attention, experts.router.experts);
}

}  // namespace

const ModelFamily& DbrxFamily() {
  static constexpr ModelFamily kFamily = {"DbrxForCausalLM", "dbrx", ReadDbrx};
  return kFamily;
}

}  // namespace moesaic
