#include "core/perf/model_shape.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/settings_yaml.h"

namespace moesaic {
namespace {

// As in model_config.cpp: far above any model, and no product of two overflows.
constexpr int64_t kMostShapeWidth = 1'000'000;
constexpr int64_t kMostShapeVocab = 10'000'000;
constexpr int64_t kMostShapeLayers = 10'000;
constexpr int64_t kMostShapeCount = 65'535;
constexpr uint64_t kMostShapeParameters = 100'000'000'000'000;

uint64_t U(int64_t value) { return static_cast<uint64_t>(value); }

uint64_t BytesOf(uint64_t parameters, double bytes_per_weight) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(parameters) * bytes_per_weight));
}

// Self-attention of one layer as one sum, for cross-attention and the encoder.
uint64_t AttentionParameters(const ModelShape& shape) {
  return shape.PreAttentionParameters() + shape.PostAttentionParameters();
}

void AddShapeOptions(ModelShape& shape, OptionTable& table) {
  const auto add = [&table](const char* name, Option::Target target, double min, double max) {
    Option option{name, target, "", "", ""};
    option.min = min;
    option.max = max;
    option.settable_outside = true;
    table.Add(std::move(option));
  };
  add("name", &shape.name, 0, 0);
  add("source", &shape.source, 0, 0);
  add("num-layers", &shape.num_layers, 1, kMostShapeLayers);
  add("encoder-layers", &shape.encoder_layers, 0, kMostShapeLayers);
  add("hidden-size", &shape.hidden_size, 1, kMostShapeWidth);
  add("vocab-size", &shape.vocab_size, 1, kMostShapeVocab);
  add("tied-embedding", &shape.tied_embedding, 0, 0);
  add("num-experts", &shape.num_experts, 1, kMostShapeCount);
  add("top-k", &shape.top_k, 1, kMostShapeCount);
  add("expert-intermediate", &shape.expert_intermediate, 1, kMostShapeWidth);
  add("dense-layers", &shape.dense_layers, 0, kMostShapeLayers);
  add("dense-intermediate", &shape.dense_intermediate, 0, kMostShapeWidth);
  add("shared-intermediate", &shape.shared_intermediate, 0, kMostShapeWidth);
  add("shared-gate", &shape.shared_gate, 0, 0);
  add("gated", &shape.gated, 0, 0);
  add("mlp-bias", &shape.mlp_bias, 0, 0);
  add("num-heads", &shape.num_heads, 1, kMostShapeCount);
  add("num-kv-heads", &shape.num_kv_heads, 1, kMostShapeCount);
  add("head-dim", &shape.head_dim, 1, kMostShapeCount);
  add("qkv-bias", &shape.qkv_bias, 0, 0);
  add("output-bias", &shape.output_bias, 0, 0);
  add("q-lora-rank", &shape.q_lora_rank, 0, kMostShapeCount);
  add("kv-lora-rank", &shape.kv_lora_rank, 0, kMostShapeCount);
  add("qk-nope-dim", &shape.qk_nope_dim, 0, kMostShapeCount);
  add("qk-rope-dim", &shape.qk_rope_dim, 0, kMostShapeCount);
  add("v-head-dim", &shape.v_head_dim, 0, kMostShapeCount);
  add("bytes-per-weight", &shape.bytes_per_weight, 0.125, 8);
  add("expert-bytes-per-weight", &shape.expert_bytes_per_weight, 0.125, 8);
  add("kv-bytes-per-value", &shape.kv_bytes_per_value, 1, 8);
}

}  // namespace

uint64_t ModelShape::ExpertParameters() const {
  const MlpSpec expert = {.width = expert_intermediate, .gated = gated, .bias = mlp_bias};
  return U(expert.Parameters(hidden_size));
}

uint64_t ModelShape::ExpertBytes() const {
  if (expert_blob_bytes > 0) return expert_blob_bytes;
  return BytesOf(ExpertParameters(), expert_bytes_per_weight);
}

uint64_t ModelShape::PreAttentionParameters() const {
  const uint64_t h = U(hidden_size);
  const uint64_t heads = U(num_heads);
  if (latent_attention()) {
    const uint64_t query = heads * U(qk_nope_dim + qk_rope_dim);
    const uint64_t q = q_lora_rank > 0 ? h * U(q_lora_rank) + U(q_lora_rank) * query : h * query;
    return q + h * U(kv_lora_rank + qk_rope_dim) +
           U(kv_lora_rank) * heads * U(qk_nope_dim + v_head_dim);
  }
  const uint64_t width = (heads + 2 * U(num_kv_heads)) * U(head_dim);
  return h * width + (qkv_bias ? width : 0);
}

uint64_t ModelShape::PostAttentionParameters() const {
  const uint64_t width = U(num_heads) * U(latent_attention() ? v_head_dim : head_dim);
  return width * U(hidden_size) + (output_bias ? U(hidden_size) : 0);
}

uint64_t ModelShape::SharedParameters() const {
  return 3 * U(hidden_size) * U(shared_intermediate) + (shared_gate ? U(hidden_size) : 0);
}

uint64_t ModelShape::RouterParameters() const { return U(hidden_size) * U(num_experts); }

uint64_t ModelShape::DenseMlpParameters() const {
  const MlpSpec mlp = {.width = dense_intermediate, .gated = gated, .bias = mlp_bias};
  return U(mlp.Parameters(hidden_size));
}

uint64_t ModelShape::EmbeddingParameters() const {
  return U(vocab_size) * U(hidden_size) * (tied_embedding ? 1 : 2);
}

uint64_t ModelShape::DenseParameters() const {
  const uint64_t decoder = U(num_layers);
  const uint64_t encoder = U(encoder_layers);
  const uint64_t sparse = U(sparse_layers());
  // A decoder beside an encoder attends to it as well, in every layer.
  const uint64_t attentions = encoder + decoder * (encoder > 0 ? 2 : 1);
  const uint64_t norms = 2 * U(hidden_size) * (encoder + decoder) + U(hidden_size);
  return attentions * AttentionParameters(*this) + norms +
         sparse * (RouterParameters() + SharedParameters()) +
         U(dense_layers) * DenseMlpParameters() + EmbeddingParameters();
}

uint64_t ModelShape::TotalParameters() const {
  return DenseParameters() + U(sparse_layers()) * U(num_experts) * ExpertParameters();
}

uint64_t ModelShape::LayerDenseBytes() const {
  return BytesOf(
      AttentionParameters(*this) + RouterParameters() + SharedParameters() + 2 * U(hidden_size),
      bytes_per_weight);
}

uint64_t ModelShape::DenseBytes() const {
  if (dense_blob_bytes > 0) return dense_blob_bytes;
  return BytesOf(DenseParameters(), bytes_per_weight);
}

uint64_t ModelShape::AllExpertBytes() const {
  return U(sparse_layers()) * U(num_experts) * ExpertBytes();
}

uint64_t ModelShape::KvBytesPerLayer() const {
  const uint64_t values =
      latent_attention() ? U(kv_lora_rank + qk_rope_dim) : 2 * U(num_kv_heads) * U(head_dim);
  return values * U(kv_bytes_per_value);
}

uint64_t ModelShape::KvBytesPerToken() const { return KvBytesPerLayer() * U(num_layers); }

uint64_t ModelShape::AttentionInBytes() const {
  // The absorbed form sends a query of the latent's width for each head.
  const uint64_t query =
      U(num_heads) * U(latent_attention() ? kv_lora_rank + qk_rope_dim : head_dim);
  return 2 * query + KvBytesPerLayer();
}

uint64_t ModelShape::AttentionOutBytes() const {
  return 2 * U(num_heads) * U(latent_attention() ? kv_lora_rank : head_dim);
}

double ModelShape::AttentionFlopPerPosition() const {
  const auto heads = static_cast<double>(num_heads);
  if (latent_attention()) {
    return 2 * heads * static_cast<double>(2 * kv_lora_rank + qk_rope_dim);
  }
  return 4 * heads * static_cast<double>(head_dim);
}

void ModelShape::Check(std::string_view what) const {
  const auto require = [&](bool holds, std::string_view problem) {
    if (!holds) Fail(ErrorKind::kInvalidArgument, "{}: {}", what, problem);
  };
  require(num_layers > 0, "num-layers is missing");
  require(hidden_size > 0, "hidden-size is missing");
  require(vocab_size > 0, "vocab-size is missing");
  require(num_experts > 0, "num-experts is missing");
  require(top_k > 0 && top_k <= num_experts, "top-k must be from 1 to num-experts");
  require(expert_intermediate > 0, "expert-intermediate is missing");
  require(num_heads > 0, "num-heads is missing");
  require(dense_layers < num_layers + encoder_layers, "dense-layers leaves no layer with experts");
  require(dense_layers == 0 || dense_intermediate > 0, "dense-layers needs dense-intermediate");
  if (latent_attention()) {
    require(qk_nope_dim > 0 && qk_rope_dim > 0 && v_head_dim > 0,
            "kv-lora-rank needs qk-nope-dim, qk-rope-dim and v-head-dim");
  } else {
    require(head_dim > 0, "head-dim is missing");
    require(num_kv_heads > 0 && num_heads % num_kv_heads == 0,
            "num-kv-heads must divide num-heads");
  }
  const int64_t widest =
      latent_attention() ? std::max(qk_nope_dim + qk_rope_dim, v_head_dim) : head_dim;
  require(num_heads * widest <= kMostShapeWidth, "num-heads x head-dim is more than a million");
  const double experts = static_cast<double>(sparse_layers()) * static_cast<double>(num_experts) *
                         static_cast<double>(ExpertParameters());
  require(
      experts + static_cast<double>(DenseParameters()) <= static_cast<double>(kMostShapeParameters),
      "more than 100 T parameters");
}

namespace {

void TakeMixer(const GroupedQuerySpec& attention, ModelShape& shape) {
  shape.num_heads = attention.heads;
  shape.num_kv_heads = attention.kv_heads;
  shape.head_dim = attention.head_dim;
  shape.qkv_bias = attention.qkv_bias;
  shape.output_bias = attention.output_bias;
}

void TakeMixer(const LatentSpec& latent, ModelShape& shape) {
  shape.num_heads = latent.heads;
  shape.num_kv_heads = 1;
  shape.q_lora_rank = latent.q_rank;
  shape.kv_lora_rank = latent.kv_rank;
  shape.qk_nope_dim = latent.nope_dim;
  shape.qk_rope_dim = latent.rope_dim;
  shape.v_head_dim = latent.value_dim;
}

}  // namespace

ModelShape ShapeOf(const ModelConfig& config, std::string name) {
  ModelShape shape;
  shape.name = std::move(name);
  shape.source = "config.json";
  shape.num_layers = config.num_layers();
  shape.hidden_size = config.hidden_size;
  shape.vocab_size = config.vocab_size;
  shape.tied_embedding = config.tie_word_embeddings;
  const ExpertsSpec& experts = config.experts();
  shape.num_experts = experts.router.experts;
  shape.top_k = experts.router.top_k;
  shape.expert_intermediate = experts.expert.width;
  shape.gated = experts.expert.gated;
  shape.mlp_bias = experts.expert.bias;
  shape.dense_layers = config.num_layers() - config.num_sparse_layers();
  shape.dense_intermediate = config.dense_width();
  shape.shared_intermediate = config.shared_width();
  shape.shared_gate = experts.shared_gate;
  std::visit([&](const auto& mixer) { TakeMixer(mixer, shape); }, config.layers.front().mixer);
  shape.Check(shape.name);
  return shape;
}

ModelShape ParseModelShape(std::string_view yaml, const std::string& file) {
  ModelShape shape;
  OptionTable table;
  AddShapeOptions(shape, table);
  ApplyConfigText(yaml, file, table, "see the files beside it");
  shape.Check(file);
  return shape;
}

double ExpectedActiveExperts(int64_t num_experts, int64_t top_k, double tokens) {
  if (tokens <= 0) return 0;
  const auto experts = static_cast<double>(num_experts);
  // 1 - (1 - k/E)^n, exact for k = E and without cancellation for small k/E.
  return experts * -std::expm1(tokens * std::log1p(-static_cast<double>(top_k) / experts));
}

}  // namespace moesaic
