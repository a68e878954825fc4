#include "core/perf/model_shape.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

// All that an indexer has.
uint64_t IndexerParameters(const ModelShape& shape) {
  return U(shape.index_heads) * U(shape.index_head_dim) * U(shape.q_lora_rank) +
         U(shape.hidden_size) * U(shape.index_head_dim + shape.index_heads) +
         2 * U(shape.index_head_dim);
}

// Projections before attention, and behind it, of a layer that has it.
uint64_t AttentionIn(const ModelShape& shape) {
  const uint64_t h = U(shape.hidden_size);
  const uint64_t heads = U(shape.num_heads);
  if (shape.latent_attention()) {
    const uint64_t query = heads * U(shape.qk_nope_dim + shape.qk_rope_dim);
    const uint64_t rank = U(shape.q_lora_rank);
    const uint64_t q = rank > 0 ? h * rank + rank * query : h * query;
    return q + h * U(shape.kv_lora_rank + shape.qk_rope_dim) +
           U(shape.kv_lora_rank) * heads * U(shape.qk_nope_dim + shape.v_head_dim);
  }
  const uint64_t width =
      (heads * (shape.output_gate ? 2 : 1) + 2 * U(shape.num_kv_heads)) * U(shape.head_dim);
  return h * width + (shape.qkv_bias ? width : 0);
}

uint64_t AttentionOut(const ModelShape& shape) {
  const uint64_t width =
      U(shape.num_heads) * U(shape.latent_attention() ? shape.v_head_dim : shape.head_dim);
  return width * U(shape.hidden_size) + (shape.output_bias ? U(shape.hidden_size) : 0);
}

// Keys and values, or the latent, of a token.
uint64_t KvOfAttention(const ModelShape& shape) {
  const uint64_t values = shape.latent_attention() ? U(shape.kv_lora_rank + shape.qk_rope_dim)
                                                   : 2 * U(shape.num_kv_heads) * U(shape.head_dim);
  return values * U(shape.kv_bytes_per_value);
}

// Of a token, in all layers.
uint64_t IndexKeys(const ModelShape& shape) {
  return U(shape.index_layers) * U(shape.index_head_dim) * U(shape.kv_bytes_per_value);
}

// Projections of linear attention.
uint64_t LinearValues(const ModelShape& shape) {
  return U(shape.linear_value_heads) * U(shape.linear_value_dim);
}
uint64_t LinearChannels(const ModelShape& shape) {
  return 2 * U(shape.linear_key_heads) * U(shape.linear_key_dim) + LinearValues(shape);
}
uint64_t LinearIn(const ModelShape& shape) {
  const uint64_t heads = U(shape.linear_value_heads);
  return U(shape.hidden_size) * (LinearChannels(shape) + LinearValues(shape) + 2 * heads) +
         LinearChannels(shape) * U(shape.linear_conv_width) + 2 * heads;
}
uint64_t LinearOut(const ModelShape& shape) {
  return LinearValues(shape) * U(shape.hidden_size) + U(shape.linear_value_dim);
}

uint64_t MeanOfLayers(const ModelShape& shape, uint64_t with_attention, uint64_t linear) {
  if (shape.linear_layers == 0) return with_attention;
  return (U(shape.attention_layers()) * with_attention + U(shape.linear_layers) * linear) /
         U(shape.num_layers);
}

void AddShapeOptions(ModelShape& shape, OptionTable& table) {
  const auto add = [&table](const char* name, Option::Target target, double min, double max) {
    Option option{name, std::move(target), "", "", ""};
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
  add("index-topk", &shape.index_topk, 0, kMostShapeWidth);
  add("index-heads", &shape.index_heads, 0, kMostShapeCount);
  add("index-head-dim", &shape.index_head_dim, 0, kMostShapeCount);
  add("index-layers", &shape.index_layers, 0, kMostShapeLayers);
  add("output-gate", &shape.output_gate, 0, 0);
  add("linear-layers", &shape.linear_layers, 0, kMostShapeLayers);
  add("linear-key-heads", &shape.linear_key_heads, 0, kMostShapeCount);
  add("linear-value-heads", &shape.linear_value_heads, 0, kMostShapeCount);
  add("linear-key-dim", &shape.linear_key_dim, 0, kMostShapeCount);
  add("linear-value-dim", &shape.linear_value_dim, 0, kMostShapeCount);
  add("linear-conv-width", &shape.linear_conv_width, 0, kMostShapeCount);
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
  return MeanOfLayers(*this, AttentionIn(*this), LinearIn(*this)) +
         IndexerParameters(*this) * U(index_layers) / U(num_layers);
}

uint64_t ModelShape::PostAttentionParameters() const {
  return MeanOfLayers(*this, AttentionOut(*this), LinearOut(*this));
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
  const uint64_t attentions = encoder + U(attention_layers()) + (encoder > 0 ? decoder : 0);
  const uint64_t norms = 2 * U(hidden_size) * (encoder + decoder) + U(hidden_size);
  return attentions * (AttentionIn(*this) + AttentionOut(*this)) +
         U(linear_layers) * (LinearIn(*this) + LinearOut(*this)) + norms +
         U(index_layers) * IndexerParameters(*this) +
         sparse * (RouterParameters() + SharedParameters()) +
         U(dense_layers) * DenseMlpParameters() + EmbeddingParameters();
}

uint64_t ModelShape::TotalParameters() const {
  return DenseParameters() + U(sparse_layers()) * U(num_experts) * ExpertParameters();
}

uint64_t ModelShape::LayerDenseBytes() const {
  return BytesOf(PreAttentionParameters() + PostAttentionParameters() + RouterParameters() +
                     SharedParameters() + 2 * U(hidden_size),
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
  return MeanOfLayers(*this, KvOfAttention(*this), 0) + IndexKeys(*this) / U(num_layers);
}

uint64_t ModelShape::KvBytesPerToken() const {
  return KvOfAttention(*this) * U(attention_layers()) + IndexKeys(*this);
}

uint64_t ModelShape::StateBytesPerLayer() const {
  return linear_layers == 0 ? 0 : StateBytesPerSequence() / U(num_layers);
}

uint64_t ModelShape::StateBytesPerSequence() const {
  if (linear_layers == 0) return 0;
  const uint64_t matrices = LinearValues(*this) * U(linear_key_dim);
  const uint64_t inputs = U(linear_conv_width - 1) * LinearChannels(*this);
  return U(linear_layers) * (matrices + inputs) * sizeof(float);
}

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
  const double share = static_cast<double>(attention_layers()) / static_cast<double>(num_layers);
  const double heads = share * static_cast<double>(num_heads);
  if (latent_attention()) {
    return 2 * heads * static_cast<double>(2 * kv_lora_rank + qk_rope_dim);
  }
  return 4 * heads * static_cast<double>(head_dim);
}

double ModelShape::AttentionFlop(double positions, double queries) const {
  const double most = queries * static_cast<double>(index_topk);
  if (index_topk == 0 || positions <= most) return positions * AttentionFlopPerPosition();
  const double scored = 2.0 * static_cast<double>(index_heads * index_head_dim) *
                        static_cast<double>(index_layers) / static_cast<double>(num_layers);
  return most * AttentionFlopPerPosition() + positions * scored;
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
  require(
      index_topk == 0 || (latent_attention() && q_lora_rank > 0 && index_heads > 0 &&
                          index_head_dim > 0 && index_layers > 0),
      "index-topk needs q-lora-rank, kv-lora-rank, index-heads, index-head-dim and index-layers");
  require(index_topk > 0 || index_layers == 0, "index-layers needs index-topk");
  require(index_layers <= num_layers, "index-layers is more than num-layers");
  require(index_heads * index_head_dim <= kMostShapeWidth,
          "index-heads x index-head-dim is more than a million");
  const int64_t widest =
      latent_attention() ? std::max(qk_nope_dim + qk_rope_dim, v_head_dim) : head_dim;
  require(num_heads * widest <= kMostShapeWidth, "num-heads x head-dim is more than a million");
  require(linear_layers < num_layers, "linear-layers leaves no layer with attention");
  require(linear_layers == 0 || encoder_layers == 0, "linear-layers of an encoder-decoder");
  if (linear_layers > 0) {
    require(
        linear_key_heads > 0 && linear_key_dim > 0 && linear_value_dim > 0 && linear_conv_width > 0,
        "linear-layers needs linear-key-heads, -key-dim, -value-dim and -conv-width");
    require(linear_value_heads > 0 && linear_value_heads % linear_key_heads == 0,
            "linear-key-heads must divide linear-value-heads");
    require(std::max(linear_key_heads * linear_key_dim, linear_value_heads * linear_value_dim) <=
                kMostShapeWidth,
            "linear heads x their dim is more than a million");
  }
  const double experts = static_cast<double>(sparse_layers()) * static_cast<double>(num_experts) *
                         static_cast<double>(ExpertParameters());
  require(
      experts + static_cast<double>(DenseParameters()) <= static_cast<double>(kMostShapeParameters),
      "more than 100 T parameters");
}

namespace {

void TakeMixer(const GroupedQuerySpec& attention, const ModelConfig&, ModelShape& shape) {
  shape.num_heads = attention.heads;
  shape.num_kv_heads = attention.kv_heads;
  shape.head_dim = attention.head_dim;
  shape.qkv_bias = attention.qkv_bias;
  shape.output_bias = attention.output_bias;
  shape.output_gate = attention.output_gate;
}

void TakeMixer(const LatentSpec& latent, const ModelConfig& config, ModelShape& shape) {
  shape.num_heads = latent.heads;
  shape.num_kv_heads = 1;
  shape.q_lora_rank = latent.q_rank;
  shape.kv_lora_rank = latent.kv_rank;
  shape.qk_nope_dim = latent.nope_dim;
  shape.qk_rope_dim = latent.rope_dim;
  shape.v_head_dim = latent.value_dim;
  if (latent.top_k == 0) return;
  shape.index_topk = std::min(latent.top_k, kMostShapeWidth);
  shape.index_heads = latent.indexer.heads;
  shape.index_head_dim = latent.indexer.dim;
  shape.index_layers = config.num_indexers();
}

void TakeMixer(const DeltaNetSpec& delta, const ModelConfig& config, ModelShape& shape) {
  shape.linear_layers = config.NumMixers<DeltaNetSpec>();
  shape.linear_key_heads = delta.key_heads;
  shape.linear_value_heads = delta.value_heads;
  shape.linear_key_dim = delta.key_dim;
  shape.linear_value_dim = delta.value_dim;
  shape.linear_conv_width = delta.conv_width;
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
  const auto take = [&](const auto* mixer) {
    if (mixer != nullptr) TakeMixer(*mixer, config, shape);
  };
  take(config.FindMixer<GroupedQuerySpec>());
  take(config.FindMixer<LatentSpec>());
  take(config.FindMixer<DeltaNetSpec>());
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
