#include "core/config/family_fields.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/base/error.h"
#include "core/config/rope_config.h"

namespace moesaic {
namespace {

constexpr int64_t kMostSharedExperts = 1000;

DType ReadDType(const JsonFields& config) {
  // `dtype` is what newer versions write.
  const char* key = config.Absent("dtype") ? "torch_dtype" : "dtype";
  if (config.Absent(key)) return DType::kBF16;
  const std::string name = config.String(key, "");
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  config.FailAt(key,
                fmt::format("the type \"{}\" is not supported; supported are bfloat16, float16 and "
                            "float32",
                            name.substr(0, 80)),
                ErrorKind::kUnsupported);
}

void ReadTokenIds(const JsonFields& config, const ModelDefaults& defaults, ModelConfig& model) {
  if (config.Find("eos_token_id") == nullptr) {
    if (defaults.eos >= 0) model.eos_token_ids = {static_cast<int32_t>(defaults.eos)};
  } else {
    for (const int64_t id : config.Ints("eos_token_id", 0, INT32_MAX)) {
      model.eos_token_ids.push_back(static_cast<int32_t>(id));
    }
  }
  const auto id_or_none = [&](const char* key, int64_t fallback) {
    return static_cast<int32_t>(config.OptionalInt(key, fallback, -1, INT32_MAX).value_or(-1));
  };
  model.bos_token_id = id_or_none("bos_token_id", defaults.bos);
  model.pad_token_id = id_or_none("pad_token_id", defaults.pad);
}

int64_t ReadHeadDim(const JsonFields& config, std::optional<int64_t> fallback, int64_t hidden_size,
                    int64_t heads) {
  int64_t head_dim = 0;
  if (!config.Absent("head_dim")) {
    head_dim = config.Int("head_dim", 0, 1, kMostHeadDim);
  } else if (fallback) {
    head_dim = *fallback;
  } else if (hidden_size % heads != 0) {
    config.FailAt("hidden_size",
                  fmt::format("is {}, expected a multiple of num_attention_heads, {}, because "
                              "there is no head_dim",
                              hidden_size, heads));
  } else {
    head_dim = hidden_size / heads;
  }
  if (head_dim % 2 != 0 || head_dim > kMostHeadDim) {
    config.FailAt(
        "head_dim",
        fmt::format(
            "is {}{}, expected an even number up to {} (rotary embedding pairs halves)", head_dim,
            config.Absent("head_dim") ? " (hidden_size / num_attention_heads)" : "", kMostHeadDim));
  }
  return head_dim;
}

int64_t ReadRotaryDim(const JsonFields& config, const AttentionDefaults& defaults,
                      int64_t head_dim) {
  const char* const key = defaults.rotary_dim_key;
  const bool says_share = ParseRotaryShare(config, -1.0) >= 0.0;
  if (key != nullptr && !says_share && !config.Absent(key)) {
    const int64_t rotary_dim = config.Int(key, 0, 2, head_dim);
    if (rotary_dim % 2 == 0) return rotary_dim;
    config.FailAt(key, fmt::format("is {}, expected an even number", rotary_dim));
  }
  const double share = ParseRotaryShare(config, defaults.rotary_share.value_or(1.0));
  if (!defaults.rotary_share && share != 1.0) {
    config.FailAt("partial_rotary_factor",
                  fmt::format("is {}; only 1.0 (all of head_dim rotated) is supported", share),
                  ErrorKind::kUnsupported);
  }
  const auto rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * share);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    config.FailAt("partial_rotary_factor",
                  fmt::format("is {}, which rotates {} of head_dim, {}; expected an even number of "
                              "at least 2",
                              share, rotary_dim, head_dim));
  }
  return rotary_dim;
}

Activation ReadActivation(const JsonFields& config) {
  const std::string activation = config.String("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.FailAt("hidden_act",
                  fmt::format("the activation \"{}\" is not supported; supported is silu",
                              activation.substr(0, 80)),
                  ErrorKind::kUnsupported);
  }
  return Activation::kSilu;
}

// Which layers layer_types says are of this type, the others having full attention.
std::optional<std::vector<bool>> ReadLayersOfType(const JsonFields& config, int64_t layers,
                                                  std::string_view type) {
  if (config.Absent("layer_types")) return std::nullopt;
  const nlohmann::json& types = *config.Find("layer_types");
  if (!types.is_array() || types.size() != static_cast<size_t>(layers)) {
    config.FailAt("layer_types",
                  fmt::format("expected a list of num_hidden_layers, {}, names", layers));
  }
  std::vector<bool> of_type(types.size(), false);
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == type) {
      of_type[layer] = true;
    } else if (types[layer] != "full_attention") {
      config.FailAt("layer_types",
                    fmt::format("layer {} is neither full_attention nor {}", layer, type),
                    ErrorKind::kUnsupported);
    }
  }
  return of_type;
}

}  // namespace

void ReadModel(const JsonFields& config, const ModelDefaults& defaults, ModelConfig& model) {
  model.vocab_size = config.Int("vocab_size", defaults.vocab_size, 1, kMostVocab);
  model.hidden_size = config.Int("hidden_size", defaults.hidden_size, 1, kMostWidth);
  model.max_position =
      config.Int("max_position_embeddings", defaults.max_position, 1, kMostPosition);
  model.final_norm.eps = config.Number("rms_norm_eps", defaults.rms_norm_eps, 0.0, 1.0);
  model.tie_word_embeddings = config.Bool("tie_word_embeddings", false);
  model.prediction_layers =
      config.OptionalInt("num_nextn_predict_layers", 0, 0, kMostLayers).value_or(0);
  model.checkpoint_dtype = ReadDType(config);
  ReadTokenIds(config, defaults, model);
}

int64_t ReadLayerCount(const JsonFields& config, int64_t fallback) {
  return config.Int("num_hidden_layers", fallback, 1, kMostLayers);
}

GroupedQuerySpec ReadAttention(const JsonFields& config, const AttentionDefaults& defaults,
                               const ModelConfig& model) {
  GroupedQuerySpec attention;
  attention.heads = config.Int("num_attention_heads", defaults.heads, 1, kMostHeads);
  // null: as many as heads.
  attention.kv_heads = config.OptionalInt("num_key_value_heads", defaults.kv_heads, 1, kMostHeads)
                           .value_or(attention.heads);
  if (attention.heads % attention.kv_heads != 0) {
    config.FailAt(
        "num_key_value_heads",
        fmt::format("is {}{}, expected a divisor of num_attention_heads, {}", attention.kv_heads,
                    config.Absent("num_key_value_heads") ? " (the default)" : "", attention.heads));
  }
  attention.head_dim = ReadHeadDim(config, defaults.head_dim, model.hidden_size, attention.heads);
  attention.rotary_dim = ReadRotaryDim(config, defaults, attention.head_dim);
  attention.rope = ParseRopeConfig(config, defaults.rope_theta, model.max_position);
  if (attention.rope.kind == RopeKind::kDynamicNtk && attention.rotary_dim <= 2) {
    config.FailAt("head_dim",
                  "is 2, expected more for dynamic rope, whose formula divides by head_dim - 2");
  }
  attention.norm = model.final_norm;
  attention.scale = 1.0 / std::sqrt(static_cast<double>(attention.head_dim));
  return attention;
}

RouterSpec ReadRouter(const JsonFields& config, const RouterDefaults& defaults) {
  // Each family has one name; transformers takes another one as an alias.
  const std::string_view main_key = defaults.experts_key;
  const std::string_view alias =
      main_key == "num_local_experts" ? "num_experts" : "num_local_experts";
  const bool has_main = config.Find(main_key) != nullptr;
  RouterSpec router;
  router.experts = config.Int(has_main ? main_key : alias, defaults.experts, 1, kMostExperts);
  if (has_main && !config.Absent(alias) &&
      config.Int(alias, 0, 1, kMostExperts) != router.experts) {
    config.FailAt(alias, fmt::format("is {}, but {} is {}", config.Int(alias, 0, 1, kMostExperts),
                                     main_key, router.experts));
  }
  router.top_k = config.Int("num_experts_per_tok", defaults.top_k, 1, kMostExperts);
  if (router.top_k > router.experts) {
    config.FailAt("num_experts_per_tok",
                  fmt::format("is {}, expected at most the number of experts, {}", router.top_k,
                              router.experts));
  }
  return router;
}

void ReadGroups(const JsonFields& config, RouterSpec& router, int64_t groups, int64_t kept) {
  router.num_groups = config.OptionalInt("n_group", groups, 1, router.experts).value_or(1);
  if (router.experts % router.num_groups != 0) {
    config.FailAt("n_group", fmt::format("is {}, expected a divisor of the number of experts, {}",
                                         router.num_groups, router.experts));
  }
  router.groups_kept =
      config.OptionalInt("topk_group", std::min(kept, router.num_groups), 1, router.num_groups)
          .value_or(1);
  const int64_t left = router.groups_kept * (router.experts / router.num_groups);
  if (router.top_k > left) {
    config.FailAt("topk_group", fmt::format("is {}, which leaves {} experts; expected at least "
                                            "num_experts_per_tok, {}",
                                            router.groups_kept, left, router.top_k));
  }
}

void ReadCorrectedSigmoid(const JsonFields& config, double scale, RouterSpec& router) {
  router.score = ScoreFunction::kSigmoid;
  router.correction_bias = true;
  router.group_rule = GroupRule::kTopTwoSum;
  if (config.Bool("norm_topk_prob", true)) {
    router.norm = RouterNorm::kSumPlusEps;
    router.norm_eps = 1e-20;
  }
  router.scale = config.Number("routed_scaling_factor", scale, 1e-6, 1e6);
}

MlpSpec ReadSharedExperts(const JsonFields& config, const MlpSpec& expert, int64_t fallback) {
  MlpSpec shared = expert;
  shared.width *=
      config.OptionalInt("n_shared_experts", fallback, 0, kMostSharedExperts).value_or(0);
  return shared;
}

void AddLayersDenseFirst(const JsonFields& config, int64_t layers, int64_t dense_layers,
                         const LayerSpec& dense, const ExpertsSpec& experts, ModelConfig& model) {
  const int64_t first_sparse = config.Int("first_k_dense_replace", dense_layers, 0, kMostLayers);
  for (int64_t l = 0; l < layers; ++l) {
    model.layers.push_back(dense);
    if (l >= first_sparse) model.layers.back().mlp = experts;
  }
}

MlpSpec ReadMlp(const JsonFields& config, std::string_view width_key, int64_t fallback) {
  MlpSpec mlp;
  mlp.width = config.Int(width_key, fallback, 1, kMostWidth);
  mlp.activation = ReadActivation(config);
  return mlp;
}

std::vector<bool> ReadSparseLayers(const JsonFields& config, int64_t layers) {
  std::vector<bool> sparse(static_cast<size_t>(layers));
  const int64_t step = config.Int("decoder_sparse_step", 1, 1, kMostLayers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    sparse[static_cast<size_t>(layer)] = (layer + 1) % step == 0;
  }
  for (const int64_t layer : config.Ints("mlp_only_layers", 0, kMostLayers)) {
    // A layer past the end names nothing, which transformers accepts too.
    if (layer < layers) sparse[static_cast<size_t>(layer)] = false;
  }
  return sparse;
}

std::optional<std::vector<bool>> ReadSlidingLayers(const JsonFields& config, int64_t layers) {
  return ReadLayersOfType(config, layers, "sliding_attention");
}

nlohmann::json TextConfig(const JsonFields& config) {
  nlohmann::json text = config.Object("text_config");
  const JsonFields fields(text, config.file(), "text_config.");
  const bool typed = !fields.Absent("dtype") || !fields.Absent("torch_dtype");
  for (const char* const key :
       {"dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id"}) {
    const bool of_type = std::string_view(key).ends_with("dtype");
    if (of_type ? typed : fields.Find(key) != nullptr) continue;
    if (const nlohmann::json* const outer = config.Find(key)) text[key] = *outer;
  }
  text["tie_word_embeddings"] = config.Bool("tie_word_embeddings", false);
  return text;
}

DeltaNetSpec ReadDeltaNet(const JsonFields& config, const ModelConfig& model) {
  DeltaNetSpec spec;
  spec.key_heads = config.Int("linear_num_key_heads", 16, 1, kMostHeads);
  spec.value_heads = config.Int("linear_num_value_heads", 32, 1, kMostHeads);
  if (spec.value_heads % spec.key_heads != 0) {
    config.FailAt("linear_num_value_heads",
                  fmt::format("is {}, expected a multiple of linear_num_key_heads, {}",
                              spec.value_heads, spec.key_heads));
  }
  spec.key_dim = config.Int("linear_key_head_dim", 128, 1, kMostHeadDim);
  spec.value_dim = config.Int("linear_value_head_dim", 128, 1, kMostHeadDim);
  spec.conv_width = config.Int("linear_conv_kernel_dim", 4, 2, kMostPosition);
  spec.norm.eps = model.final_norm.eps;
  return spec;
}

GroupedQuerySpec ReadGatedAttention(const JsonFields& config, const ModelConfig& model) {
  GroupedQuerySpec attention = ReadAttention(
      config, {.heads = 16, .kv_heads = 2, .head_dim = 256, .rotary_share = 0.25}, model);
  attention.qk_norm = QkNorm::kPerHead;
  attention.output_gate = true;
  if (config.Bool("attention_bias", false)) {
    config.FailAt("attention_bias", "is true, which is not supported beside a gate of the output",
                  ErrorKind::kUnsupported);
  }
  return attention;
}

std::vector<bool> ReadLinearLayers(const JsonFields& config, int64_t layers) {
  if (auto listed = ReadLayersOfType(config, layers, "linear_attention")) return *listed;
  std::vector<bool> linear(static_cast<size_t>(layers));
  const int64_t interval = config.Int("full_attention_interval", 4, 1, kMostLayers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    linear[static_cast<size_t>(layer)] = (layer + 1) % interval != 0;
  }
  return linear;
}

TensorPlan CommonTensors(const std::string& prefix) {
  TensorPlan plan;
  plan.Set(TensorSlot::kEmbedding, prefix + "embed_tokens.weight");
  plan.Set(TensorSlot::kFinalNorm, prefix + "norm.weight");
  plan.Set(TensorSlot::kHead, "lm_head.weight");
  const std::string layer = prefix + "layers.{layer}.";
  plan.Set(TensorSlot::kInputNorm, layer + "input_layernorm.weight");
  plan.Set(TensorSlot::kPostAttentionNorm, layer + "post_attention_layernorm.weight");
  plan.Set(TensorSlot::kQ, layer + "self_attn.q_proj.weight");
  plan.Set(TensorSlot::kK, layer + "self_attn.k_proj.weight");
  plan.Set(TensorSlot::kV, layer + "self_attn.v_proj.weight");
  plan.Set(TensorSlot::kQBias, layer + "self_attn.q_proj.bias");
  plan.Set(TensorSlot::kKBias, layer + "self_attn.k_proj.bias");
  plan.Set(TensorSlot::kVBias, layer + "self_attn.v_proj.bias");
  plan.Set(TensorSlot::kQNorm, layer + "self_attn.q_norm.weight");
  plan.Set(TensorSlot::kKNorm, layer + "self_attn.k_norm.weight");
  plan.Set(TensorSlot::kOutput, layer + "self_attn.o_proj.weight");
  plan.Set(TensorSlot::kOutputBias, layer + "self_attn.o_proj.bias");
  plan.Set(TensorSlot::kRouter, layer + "mlp.gate.weight");
  plan.SetMlp(kDenseMlpSlots, layer + "mlp.", kProjectionNames);
  plan.SetMlp(kExpertSlots, layer + "mlp.experts.{expert}.", kProjectionNames);
  return plan;
}

void SetJoinedQkv(const std::string& name, const GroupedQuerySpec& attention, TensorPlan& plan) {
  const auto set = [&](TensorSlot slot, int64_t first, int64_t count) {
    plan.Set(slot, name,
             {EveryNthRow{.step = attention.qkv_width(), .first = first, .count = count}});
  };
  set(TensorSlot::kQ, 0, attention.q_width());
  set(TensorSlot::kK, attention.q_width(), attention.kv_width());
  set(TensorSlot::kV, attention.q_width() + attention.kv_width(), attention.kv_width());
}

void SetJoinedGateUp(const MlpSlots& slots, const std::string& name, int64_t width,
                     const std::optional<StackOf>& stack, TensorPlan& plan) {
  for (const int64_t i : {0, 1}) {
    std::vector<TensorTransform> transforms;
    if (stack) transforms.emplace_back(*stack);
    transforms.emplace_back(EveryNthRow{.step = 2 * width, .first = i * width, .count = width});
    plan.Set(slots[static_cast<size_t>(i)], name, std::move(transforms));
  }
}

void SetGatedAttention(const std::string& prefix, const GroupedQuerySpec& attention,
                       TensorPlan& plan) {
  const std::string name = prefix + "layers.{layer}.self_attn.q_proj.weight";
  const int64_t d = attention.head_dim;
  plan.Set(TensorSlot::kQ, name, {EveryNthRow{.step = 2 * d, .first = 0, .count = d}});
  plan.Set(TensorSlot::kAttentionGate, name, {EveryNthRow{.step = 2 * d, .first = d, .count = d}});
}

void SetDeltaNet(const std::string& prefix, TensorPlan& plan) {
  const std::string mixer = prefix + "layers.{layer}.linear_attn.";
  plan.Set(TensorSlot::kDeltaConv, mixer + "conv1d.weight", {RowsOfKernels{}});
  plan.Set(TensorSlot::kDeltaDecay, mixer + "A_log");
  plan.Set(TensorSlot::kDeltaStepBias, mixer + "dt_bias");
  plan.Set(TensorSlot::kDeltaNorm, mixer + "norm.weight");
  plan.Set(TensorSlot::kDeltaOutput, mixer + "out_proj.weight");
}

void SetGatedSharedExpert(const std::string& prefix, TensorPlan& plan) {
  const std::string mlp = prefix + "layers.{layer}.mlp.";
  plan.SetMlp(kSharedMlpSlots, mlp + "shared_expert.", kProjectionNames);
  plan.Set(TensorSlot::kSharedGate, mlp + "shared_expert_gate.weight");
}

}  // namespace moesaic
