#include "core/config/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/json_fields.h"
#include "core/config/family_fields.h"
#include "core/config/gguf_fields.h"
#include "core/config/gguf_latent.h"
#include "core/config/gguf_tensors.h"
#include "core/io/gguf_types.h"

namespace moesaic {
namespace {

using nlohmann::json;

json RopeScaling(const GgufFields& fields) {
  const std::string type = fields.all().String(fields.Key("rope.scaling.type"), "none");
  if (type == "none") return nullptr;
  if (type != "linear" && type != "yarn") {
    fields.Unsupported("rope.scaling.type",
                       fmt::format("is \"{}\", expected none, linear or yarn", type.substr(0, 60)));
  }
  json rope = {{"rope_type", type},
               {"factor", fields.Number("rope.scaling.factor", std::nullopt, 1e-6, 1e6)}};
  if (type == "linear") return rope;
  const double factor = rope["factor"];
  rope["original_max_position_embeddings"] =
      fields.Int("rope.scaling.original_context_length", 1, kMostPosition);
  rope["beta_fast"] = fields.Number("rope.scaling.yarn_beta_fast", 32.0, 1e-6, 1e6);
  rope["beta_slow"] = fields.Number("rope.scaling.yarn_beta_slow", 1.0, 1e-6, 1e6);
  // llama.cpp multiplies yarn's own factor with this one.
  const double attention = fields.Number("rope.scaling.attn_factor", 1.0, 1e-6, 1e6);
  rope["attention_factor"] = attention * (factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0);
  return rope;
}

void ReadEndTokens(const GgufFields& fields, json& config) {
  const auto id = [&](std::string_view key) { return GgufTokenId(fields.all(), key); };
  // End of sequence, of turn, of message: an answer ends with any.
  json ends = json::array();
  for (const char* const key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                "tokenizer.ggml.eom_token_id"}) {
    if (const auto end = id(key); end && std::find(ends.begin(), ends.end(), *end) == ends.end()) {
      ends.push_back(*end);
    }
  }
  config["eos_token_id"] = std::move(ends);
  config["bos_token_id"] = id("tokenizer.ggml.bos_token_id").value_or(-1);
  config["pad_token_id"] = id("tokenizer.ggml.padding_token_id").value_or(-1);
}

// Rows of the embedding: what llama.cpp takes, the number of tokens, is as many.
int64_t VocabularySize(const GgufHeader& header, std::string_view name) {
  const auto embedding = header.tensors.find("token_embd.weight");
  if (embedding == header.tensors.end() || embedding->second.shape.size() != 2) {
    Fail(ErrorKind::kNotFound, "{}: has no tensor token_embd.weight, a matrix", name);
  }
  return embedding->second.shape[0];
}

// What the architectures have in common.
json CommonConfig(const GgufFields& fields) {
  json config;
  config["hidden_size"] = fields.Int("embedding_length", 1, kMostWidth);
  // Layers behind the last one predict further tokens.
  const int64_t layers = fields.Int("block_count", 1, kMostLayers);
  config["num_hidden_layers"] = layers - fields.Int("nextn_predict_layers", 0, 0, layers - 1);
  const int64_t heads = fields.IntOfAllLayers("attention.head_count", std::nullopt, kMostHeads);
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] =
      fields.IntOfAllLayers("attention.head_count_kv", heads, kMostHeads);
  const bool latent = fields.Has("attention.kv_lora_rank");
  const int64_t head_dim = fields.Int(
      "attention.key_length", std::max<int64_t>(1, config["hidden_size"].get<int64_t>() / heads), 1,
      kMostHeadDim);
  if (!latent && fields.Int("attention.value_length", head_dim, 1, kMostHeadDim) != head_dim) {
    fields.Unsupported("attention.value_length", "differs from attention.key_length");
  }
  config["head_dim"] = head_dim;
  config["max_position_embeddings"] = fields.Int("context_length", 1, kMostPosition);
  const bool layer_norm = fields.architecture() == "dbrx";
  config[layer_norm ? "layer_norm_epsilon" : "rms_norm_eps"] = fields.Number(
      layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
      std::nullopt, 0.0, 1.0);
  config["rope_theta"] = fields.Number("rope.freq_base", 1e4, 1.0, 1e15);
  config["rope_scaling"] = RopeScaling(fields);
  const int64_t rotated = fields.Int("rope.dimension_count", head_dim, 2, head_dim);
  config["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head_dim);
  config["tie_word_embeddings"] = !fields.HasModelTensor("output.weight");
  config["num_experts_per_tok"] = fields.Int("expert_used_count", 1, kMostExperts);
  ReadEndTokens(fields, config);
  return config;
}

void Qwen3Moe(const GgufFields& fields, json& config) {
  config["num_experts"] = fields.Experts();
  config["moe_intermediate_size"] = fields.ExpertWidth();
  config["intermediate_size"] = fields.DenseWidth();
  config["norm_topk_prob"] = fields.NormalisedWeights(true);
  config["attention_bias"] = fields.HasTensor("attn_q.bias");
}

void Qwen2Moe(const GgufFields& fields, json& config) {
  config["num_experts"] = fields.Experts();
  config["moe_intermediate_size"] = fields.ExpertWidth();
  config["intermediate_size"] = fields.DenseWidth();
  config["shared_expert_intermediate_size"] =
      fields.Int("expert_shared_feed_forward_length", 1, kMostWidth);
  config["norm_topk_prob"] = fields.NormalisedWeights(false);
  config["qkv_bias"] = fields.HasTensor("attn_q.bias");
}

void Olmoe(const GgufFields& fields, json& config) {
  config["num_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
  config["norm_topk_prob"] = fields.NormalisedWeights(false);
  const double clip = fields.Number("attention.clamp_kqv", 0.0, 0.0, 1e9);
  if (clip > 0.0) config["clip_qkv"] = clip;
}

// `llama` is the architecture of dense models too.
void Mixtral(const GgufFields& fields, json& config) {
  config["num_local_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
  config["sliding_window"] = fields.Has("attention.sliding_window")
                                 ? json(fields.Int("attention.sliding_window", 0, kMostPosition))
                                 : json(nullptr);
}

void Glm4Moe(const GgufFields& fields, json& config) {
  fields.RequireSigmoidRouter();
  config["n_routed_experts"] = fields.Experts();
  config["moe_intermediate_size"] = fields.ExpertWidth();
  config["intermediate_size"] = fields.DenseWidth();
  config["n_shared_experts"] = fields.Int("expert_shared_count", 1, 0, 1000);
  config["first_k_dense_replace"] = fields.Int("leading_dense_block_count", 0, 0, kMostLayers);
  config["n_group"] = fields.Int("expert_group_count", 1, 1, kMostExperts);
  config["topk_group"] = fields.Int("expert_group_used_count", 1, 1, kMostExperts);
  config["norm_topk_prob"] = fields.NormalisedWeights(true);
  config["routed_scaling_factor"] = fields.Number("expert_weights_scale", 1.0, 1e-6, 1e6);
  config["use_qk_norm"] = fields.HasTensor("attn_q_norm.weight");
  config["attention_bias"] = fields.HasTensor("attn_q.bias");
}

void MiniMaxM2(const GgufFields& fields, json& config) {
  fields.RequireSigmoidRouter();
  config["num_local_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
}

// Every other layer has the window; alpha and limit of the experts' activation are not in the file.
void GptOss(const GgufFields& fields, json& config) {
  config["num_local_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
  config["sliding_window"] = fields.Int("attention.sliding_window", 0, kMostPosition);
  config["attention_bias"] = fields.HasTensor("attn_q.bias");
  if (config["rope_scaling"].is_object()) config["rope_scaling"]["truncate"] = false;
}

// Qwen3-Next's and Qwen3.5's.
void LinearAttention(const GgufFields& fields, json& config) {
  config["num_experts"] = fields.Experts();
  config["moe_intermediate_size"] = fields.ExpertWidth();
  config["shared_expert_intermediate_size"] =
      fields.Int("expert_shared_feed_forward_length", 1, kMostWidth);
  config["intermediate_size"] = fields.DenseWidth();
  config["norm_topk_prob"] = fields.NormalisedWeights(true);
  config["full_attention_interval"] = fields.Int("full_attention_interval", 4, 1, kMostLayers);
  config["linear_conv_kernel_dim"] = fields.Int("ssm.conv_kernel", 2, kMostWidth);
  config["linear_key_head_dim"] = fields.Int("ssm.state_size", 1, kMostHeadDim);
  config["linear_num_key_heads"] = fields.Int("ssm.group_count", 1, kMostHeads);
  const int64_t value_heads = fields.Int("ssm.time_step_rank", 1, kMostHeads);
  config["linear_num_value_heads"] = value_heads;
  const int64_t values = fields.Int("ssm.inner_size", 1, kMostWidth * 10);
  if (values % value_heads != 0) {
    fields.Unsupported(
        "ssm.inner_size",
        fmt::format("is {}, expected a multiple of ssm.time_step_rank, {}", values, value_heads));
  }
  config["linear_value_head_dim"] = values / value_heads;
}

// With the MLP that every token runs it is another family.
void GraniteMoe(const GgufFields& fields, json& config) {
  const bool shared = fields.Has("expert_shared_feed_forward_length");
  config["architectures"] = {fmt::format("GraniteMoe{}ForCausalLM", shared ? "Shared" : "")};
  config["model_type"] = fmt::format("granitemoe{}", shared ? "shared" : "");
  config["num_local_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
  if (shared) {
    config["shared_intermediate_size"] =
        fields.Int("expert_shared_feed_forward_length", 1, kMostWidth);
  }
  config["attention_bias"] = fields.HasTensor("attn_q.bias");
  const auto scale = [&](const char* key, double fallback) {
    return fields.Number(key, fallback, 1e-9, 1e9);
  };
  config["embedding_multiplier"] = scale("embedding_scale", 1.0);
  config["residual_multiplier"] = scale("residual_scale", 1.0);
  config["logits_scaling"] = scale("logit_scale", 1.0);
  config["attention_multiplier"] =
      scale("attention.scale", 1.0 / std::sqrt(config["head_dim"].get<double>()));
}

// Weights of experts are always divided by their sum.
void Dbrx(const GgufFields& fields, json& config) {
  config["num_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
  const double clip = fields.Number("attention.clamp_kqv", 0.0, 0.0, 1e9);
  if (clip > 0.0) config["attn_config"] = {{"clip_qkv", clip}};
}

void Arctic(const GgufFields& fields, json& config) {
  config["num_local_experts"] = fields.Experts();
  config["intermediate_size"] = fields.ExpertWidth();
  config["moe_layer_frequency"] = 1;
  config["parallel_attn_mlp_res"] = true;
}

// What the smallest weight sum is and where experts end is not in the file.
void Ernie45Moe(const GgufFields& fields, json& config) {
  config["moe_num_experts"] = fields.Experts();
  config["moe_k"] = config["num_experts_per_tok"];
  config["moe_intermediate_size"] = fields.ExpertWidth();
  config["intermediate_size"] = fields.DenseWidth();
  config["moe_num_shared_experts"] = fields.Int("expert_shared_count", 0, 0, 1000);
  config["moe_layer_interval"] = fields.Int("interleave_moe_layer_step", 1, 1, kMostLayers);
  config["moe_layer_start_index"] = fields.Int("leading_dense_block_count", 0, 0, kMostLayers);
}

// The text of a model that also sees is a part of its config.json.
void Qwen35Moe(const GgufFields& fields, json& config) {
  LinearAttention(fields, config);
  json text = config;
  config["text_config"] = std::move(text);
}

struct GgufArchitecture {
  std::string_view name;  // general.architecture
  std::string_view hf_architecture;
  std::string_view model_type;
  void (*read)(const GgufFields& fields, json& config);
};
constexpr GgufArchitecture kArchitectures[] = {
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", Qwen3Moe},
    {"llama", "MixtralForCausalLM", "mixtral", Mixtral},
    {"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", Qwen2Moe},
    {"olmoe", "OlmoeForCausalLM", "olmoe", Olmoe},
    {"glm4moe", "Glm4MoeForCausalLM", "glm4_moe", Glm4Moe},
    {"minimax-m2", "MiniMaxM2ForCausalLM", "minimax_m2", MiniMaxM2},
    {"gpt-oss", "GptOssForCausalLM", "gpt_oss", GptOss},
    {"deepseek2", "", "", ReadGgufDeepseek2},  // which of them, its function says
    {"deepseek32", "DeepseekV32ForCausalLM", "deepseek_v32", ReadGgufDeepseek32},
    {"glm-dsa", "GlmMoeDsaForCausalLM", "glm_moe_dsa", ReadGgufGlmDsa},
    {"qwen3next", "Qwen3NextForCausalLM", "qwen3_next", LinearAttention},
    {"qwen35moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", Qwen35Moe},
    {"granitemoe", "", "", GraniteMoe},  // likewise
    {"dbrx", "DbrxForCausalLM", "dbrx", Dbrx},
    {"arctic", "ArcticForCausalLM", "arctic", Arctic},
    {"ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", Ernie45Moe},
};

const GgufArchitecture& FindArchitecture(const GgufFields& fields) {
  std::string known;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.name == fields.architecture()) return architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  fields.all().FailAt(
      "general.architecture",
      fmt::format("is \"{}\"; served are {}", fields.architecture().substr(0, 60), known),
      ErrorKind::kUnsupported);
}

// What llama.cpp's converter has done to the weights: 1 was added to those of norms, and value
// heads of Qwen3.5 lie so that key heads come by turns.
void AsConverted(const GgufHeader& header, ModelConfig& model) {
  model.final_norm.plus_one = false;
  const bool by_turns = header.metadata.value("general.architecture", "") == "qwen35moe";
  for (LayerSpec& layer : model.layers) {
    layer.norm.plus_one = false;
    if (auto* const delta = std::get_if<DeltaNetSpec>(&layer.mixer)) {
      delta->by_turns = by_turns;
    } else if (auto* const attention = std::get_if<GroupedQuerySpec>(&layer.mixer)) {
      attention->norm.plus_one = false;
    }
  }
}

}  // namespace

std::optional<int64_t> GgufTokenId(const JsonFields& metadata, std::string_view key) {
  // Some converters write -1, as an unsigned number, for none.
  constexpr int64_t kNone = 0xffffffff;
  const auto id = metadata.OptionalInt(key, std::nullopt, -1, kNone);
  return id && *id != -1 && *id != kNone ? id : std::nullopt;
}

json GgufConfigJson(const GgufHeader& header, std::string_view name) {
  const GgufFields fields(header, name);
  const GgufArchitecture& architecture = FindArchitecture(fields);
  if (architecture.name == "llama" && fields.Int("expert_count", 0, 0, kMostExperts) == 0) {
    fields.Unsupported("expert_count", "is 0: this is a model without experts");
  }
  json config = CommonConfig(fields);
  config["vocab_size"] = VocabularySize(header, name);
  config["architectures"] = {architecture.hf_architecture};
  config["model_type"] = architecture.model_type;
  architecture.read(fields, config);
  return config;
}

ModelConfig ParseGgufConfig(const GgufHeader& header, std::string_view name) {
  const std::string as_config = fmt::format("{} (as config.json)", name);
  ModelConfig model = ParseModelConfig(GgufConfigJson(header, name).dump(), as_config);
  AsConverted(header, model);
  model.tensors = GgufTensors(header, model);
  for (const auto& [tensor, info] : header.tensors) {
    if (const GgufType* const type = FindGgufType(info.dtype_name)) {
      model.gguf_types[tensor] = type->id;
    }
  }
  return model;
}

}  // namespace moesaic
