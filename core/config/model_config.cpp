#include "core/config/model_config.h"

#include <algorithm>
#include <optional>

#include "core/base/file.h"
#include "core/base/json_fields.h"
#include "core/base/units.h"
#include "core/config/model_family.h"
#include "core/config/rope_config.h"

namespace moesaic {
namespace {

using nlohmann::json;

// Far above any model that exists, and small enough that no product of two overflows.
constexpr int64_t kMostVocab = 10'000'000;
constexpr int64_t kMostWidth = 1'000'000;
constexpr int64_t kMostLayers = 10'000;
constexpr int64_t kMostHeads = 65'536;
constexpr int64_t kMostHeadDim = 65'536;
constexpr int64_t kMostExperts = 65'535;  // ExpertId::index has 16 bits
constexpr int64_t kMostPosition = int64_t{1} << 31;
constexpr uint64_t kMostParameters = 100'000'000'000'000;  // 100 T
constexpr uint64_t kMostConfigBytes = 16 << 20;

// The one kind of quantised checkpoint that is read: fp8 with a scale for each block.
Fp8Blocks ReadQuantization(const JsonFields& config) {
  if (config.Absent("quantization_config")) return {};
  const auto refuse = [&](std::string_view what) {
    config.FailAt("quantization_config",
                  fmt::format("the checkpoint is quantised ({}); supported are fp8 weights with "
                              "block scales (quant_method \"fp8\", fmt \"e4m3\", "
                              "weight_block_size of two numbers); else use the bf16, fp16 or fp32 "
                              "checkpoint of the model",
                              what),
                  ErrorKind::kUnsupported);
  };
  const json& object = *config.Find("quantization_config");
  if (!object.is_object()) refuse("quant_method \"?\"");
  const JsonFields fields(object, config.file(), "quantization_config.");
  const std::string method = fields.String("quant_method", "?");
  if (method != "fp8") refuse(fmt::format("quant_method \"{}\"", method.substr(0, 80)));
  const std::string format = fields.String("fmt", "e4m3");
  if (format != "e4m3") refuse(fmt::format("fp8, fmt \"{}\"", format.substr(0, 80)));
  const std::vector<int64_t> block = fields.Ints("weight_block_size", 1, kMostWidth);
  if (block.size() != 2) refuse("fp8 without a weight_block_size");
  return {block[0], block[1]};
}

void RefuseWhatIsNotImplemented(const JsonFields& config) {
  const std::string activation = config.String("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.FailAt("hidden_act",
                  fmt::format("the activation \"{}\" is not supported; supported is silu",
                              activation.substr(0, 80)),
                  ErrorKind::kUnsupported);
  }
}

DType ParseDType(const JsonFields& config) {
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

int64_t ReadExpertCount(const JsonFields& config, const FamilyDefaults& family) {
  // Each family has one of the two names; transformers takes the other one as an alias.
  const std::string_view main_key = family.experts_key;
  const std::string_view alias = main_key == "num_experts" ? "num_local_experts" : "num_experts";
  const bool has_main = config.Find(main_key) != nullptr;
  const int64_t count =
      config.Int(has_main ? main_key : alias, family.num_experts, 1, kMostExperts);
  if (has_main && !config.Absent(alias) && config.Int(alias, 0, 1, kMostExperts) != count) {
    config.FailAt(alias, fmt::format("is {}, but {} is {}", config.Int(alias, 0, 1, kMostExperts),
                                     main_key, count));
  }
  return count;
}

void ReadAttention(const JsonFields& config, const FamilyDefaults& family, ModelConfig& result) {
  result.num_heads = config.Int("num_attention_heads", family.num_heads, 1, kMostHeads);
  // null: as many as heads.
  const std::optional<int64_t> kv_fallback =
      family.num_kv_heads < 0 ? std::nullopt : std::optional(family.num_kv_heads);
  result.num_kv_heads = config.OptionalInt("num_key_value_heads", kv_fallback, 1, kMostHeads)
                            .value_or(result.num_heads);
  if (result.num_heads % result.num_kv_heads != 0) {
    config.FailAt(
        "num_key_value_heads",
        fmt::format("is {}{}, expected a divisor of num_attention_heads, {}", result.num_kv_heads,
                    config.Absent("num_key_value_heads") ? " (the default)" : "",
                    result.num_heads));
  }
  if (!config.Absent("head_dim")) {
    result.head_dim = config.Int("head_dim", 0, 1, kMostHeadDim);
  } else if (result.hidden_size % result.num_heads != 0) {
    config.FailAt(
        "hidden_size",
        fmt::format("is {}, expected a multiple of num_attention_heads, {}, because there is "
                    "no head_dim",
                    result.hidden_size, result.num_heads));
  } else {
    result.head_dim = result.hidden_size / result.num_heads;
  }
  if (result.head_dim % 2 != 0 || result.head_dim > kMostHeadDim) {
    config.FailAt(
        "head_dim",
        fmt::format("is {}{}, expected an even number up to {} (rotary embedding pairs halves)",
                    result.head_dim,
                    config.Absent("head_dim") ? " (hidden_size / num_attention_heads)" : "",
                    kMostHeadDim));
  }
  switch (family.family) {
    case ModelFamily::kQwen3Moe:
      result.qk_norm = QkNorm::kPerHead;
      result.qkv_bias = result.output_bias = config.Bool("attention_bias", false);
      break;
    case ModelFamily::kMixtral:
      break;
    case ModelFamily::kQwen2Moe:
      result.qkv_bias = config.Bool("qkv_bias", true);
      break;
    case ModelFamily::kOlmoe:
      result.qk_norm = QkNorm::kProjection;
      result.qkv_bias = result.output_bias = config.Bool("attention_bias", false);
      result.clip_qkv = config.OptionalNumber("clip_qkv", 1e-6, 1e9).value_or(0.0);
      break;
  }
  result.rope = ParseRopeConfig(config, family.rope_theta, result.max_position);
  if (result.rope.kind == RopeKind::kDynamicNtk && result.head_dim <= 2) {
    config.FailAt("head_dim",
                  "is 2, expected more for dynamic rope, whose formula divides by head_dim - 2");
  }
}

// Which layers slide when the family has `use_sliding_window` and `layer_types` (Qwen2-MoE).
std::vector<uint8_t> SlidingLayersOfQwen2(const JsonFields& config, int64_t num_layers,
                                          bool use_sliding_window) {
  std::vector<uint8_t> slides(num_layers, 0);
  if (config.Absent("layer_types")) {
    const int64_t max_window_layers = config.Int("max_window_layers", 28, 0, kMostLayers);
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      slides[layer] = use_sliding_window && layer % 2 == 0 && layer < max_window_layers;
    }
    return slides;
  }
  const json& types = *config.Find("layer_types");
  if (!types.is_array() || types.size() != static_cast<size_t>(num_layers)) {
    config.FailAt("layer_types",
                  fmt::format("expected a list of num_hidden_layers, {}, names", num_layers));
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const json& type = types[layer];
    if (type == "sliding_attention") {
      slides[layer] = 1;
    } else if (type != "full_attention") {
      config.FailAt("layer_types",
                    fmt::format("layer {} is neither full_attention nor sliding_attention", layer),
                    ErrorKind::kUnsupported);
    }
  }
  return slides;
}

void ReadWindows(const JsonFields& config, ModelFamily family, ModelConfig& result) {
  result.layer_window.assign(result.num_layers, 0);
  if (family == ModelFamily::kOlmoe) return;
  const bool has_switch = family != ModelFamily::kMixtral;
  const std::optional<int64_t> fallback = has_switch ? std::optional<int64_t>(4096) : std::nullopt;
  const int64_t window =
      config.OptionalInt("sliding_window", fallback, 0, kMostPosition).value_or(0);
  const bool on = has_switch ? config.Bool("use_sliding_window", false) : true;
  if (family != ModelFamily::kQwen2Moe) {
    if (on) result.layer_window.assign(result.num_layers, window);
    return;
  }
  const std::vector<uint8_t> slides = SlidingLayersOfQwen2(config, result.num_layers, on);
  for (int64_t layer = 0; layer < result.num_layers; ++layer) {
    if (slides[layer] == 0) continue;
    if (!on || window == 0) {
      config.FailAt("layer_types", fmt::format("layer {} is sliding_attention, but {}", layer,
                                               on ? "sliding_window gives no window"
                                                  : "use_sliding_window is false"));
    }
    result.layer_window[layer] = window;
  }
}

void ReadExperts(const JsonFields& config, const FamilyDefaults& family, ModelConfig& result) {
  result.num_experts = ReadExpertCount(config, family);
  result.top_k = config.Int("num_experts_per_tok", family.top_k, 1, kMostExperts);
  if (result.top_k > result.num_experts) {
    config.FailAt("num_experts_per_tok",
                  fmt::format("is {}, expected at most the number of experts, {}", result.top_k,
                              result.num_experts));
  }
  const int64_t intermediate =
      config.Int("intermediate_size", family.intermediate_size, 1, kMostWidth);
  result.layer_is_sparse.assign(result.num_layers, 1);
  if (family.family == ModelFamily::kMixtral || family.family == ModelFamily::kOlmoe) {
    result.moe_intermediate_size = intermediate;
    result.norm_topk_prob =
        family.family == ModelFamily::kMixtral || config.Bool("norm_topk_prob", false);
    return;
  }
  result.dense_intermediate_size = intermediate;
  result.moe_intermediate_size =
      config.Int("moe_intermediate_size", family.moe_intermediate_size, 1, kMostWidth);
  result.norm_topk_prob = config.Bool("norm_topk_prob", false);
  if (family.family == ModelFamily::kQwen2Moe) {
    result.shared_intermediate_size =
        config.Int("shared_expert_intermediate_size", 5632, 1, kMostWidth);
    result.shared_expert_gate = true;
  }
  const int64_t step = config.Int("decoder_sparse_step", 1, 1, kMostLayers);
  for (int64_t layer = 0; layer < result.num_layers; ++layer) {
    result.layer_is_sparse[layer] = (layer + 1) % step == 0;
  }
  for (const int64_t layer : config.Ints("mlp_only_layers", 0, kMostLayers)) {
    // A layer past the end names nothing, which transformers accepts too.
    if (layer < result.num_layers) result.layer_is_sparse[layer] = 0;
  }
  if (result.num_sparse_layers() == 0) {
    config.FailAt("mlp_only_layers",
                  "with decoder_sparse_step leaves no layer with experts; this program serves "
                  "mixture-of-experts models only",
                  ErrorKind::kUnsupported);
  }
}

void ReadTokenIds(const JsonFields& config, const FamilyDefaults& family, ModelConfig& result) {
  if (config.Find("eos_token_id") == nullptr) {
    if (family.eos >= 0) result.eos_token_ids = {static_cast<int32_t>(family.eos)};
  } else {
    for (const int64_t id : config.Ints("eos_token_id", 0, INT32_MAX)) {
      result.eos_token_ids.push_back(static_cast<int32_t>(id));
    }
  }
  const auto id_or_none = [&](const char* key, int64_t fallback) {
    return static_cast<int32_t>(config.OptionalInt(key, fallback, -1, INT32_MAX).value_or(-1));
  };
  result.bos_token_id = id_or_none("bos_token_id", family.bos);
  result.pad_token_id = id_or_none("pad_token_id", family.pad);
}

// Parameters of the whole model, with the products checked; refuses what no machine could hold.
void CheckTotalSize(const JsonFields& config, const ModelConfig& result) {
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  const auto mul = [&](uint64_t a, uint64_t b) { return CheckedMul(a, b, config.file()); };
  const uint64_t expert = mul(3 * u(result.hidden_size), u(result.moe_intermediate_size));
  const uint64_t experts = mul(mul(expert, u(result.num_experts)), u(result.num_layers));
  const uint64_t attention =
      mul(mul(u(result.hidden_size), u(result.num_heads) * u(result.head_dim)),
          2 * u(result.num_layers));
  const uint64_t embedding = mul(2 * u(result.vocab_size), u(result.hidden_size));
  for (const uint64_t part : {expert, experts, attention, embedding}) {
    if (part > kMostParameters) {
      Fail(ErrorKind::kCorrupt,
           "{}: hidden_size {}, num_hidden_layers {}, experts {} of width {}, heads {} x {} and "
           "vocab_size {} make a model of more than {} parameters; expected at most that",
           config.file(), result.hidden_size, result.num_layers, result.num_experts,
           result.moe_intermediate_size, result.num_heads, result.head_dim, result.vocab_size,
           kMostParameters);
    }
  }
}

}  // namespace

int64_t ModelConfig::widest_dense_mlp() const {
  int64_t widest = shared_intermediate_size;
  for (const uint8_t sparse : layer_is_sparse) {
    if (!sparse) widest = std::max(widest, dense_intermediate_size);
  }
  return widest;
}

int64_t ModelConfig::num_sparse_layers() const {
  return std::count_if(layer_is_sparse.begin(), layer_is_sparse.end(),
                       [](uint8_t sparse) { return sparse != 0; });
}

ModelConfig ParseModelConfig(std::string_view text, std::string_view name) {
  const json object = ParseJsonObject(text, name);
  const JsonFields config(object, name);
  const FamilyDefaults& family = FindFamily(config);
  RefuseWhatIsNotImplemented(config);

  ModelConfig result;
  result.family = family.family;
  result.architecture = family.architecture;
  result.model_type = family.model_type;
  result.vocab_size = config.Int("vocab_size", family.vocab_size, 1, kMostVocab);
  result.hidden_size = config.Int("hidden_size", family.hidden_size, 1, kMostWidth);
  result.num_layers = config.Int("num_hidden_layers", family.num_layers, 1, kMostLayers);
  result.max_position =
      config.Int("max_position_embeddings", family.max_position, 1, kMostPosition);
  result.rms_norm_eps = config.Number("rms_norm_eps", family.rms_norm_eps, 0.0, 1.0);
  result.tie_word_embeddings = config.Bool("tie_word_embeddings", false);
  result.checkpoint_dtype = ParseDType(config);
  result.fp8_blocks = ReadQuantization(config);
  ReadAttention(config, family, result);
  ReadWindows(config, family.family, result);
  ReadExperts(config, family, result);
  ReadTokenIds(config, family, result);
  CheckTotalSize(config, result);
  return result;
}

ModelConfig LoadModelConfig(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  return ParseModelConfig(ReadTextFile(path, kMostConfigBytes), path.string());
}

}  // namespace moesaic
