// ModelShape: the dimensions of a model that planning needs, and the bytes and operations that
// follow from them. From a ModelConfig, or from a preset (configs/models) of a model that this
// program cannot run.
//
// Plain data and formulas. Parameters are counted once each; a multiply-add is two operations.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/config/model_config.h"

namespace moesaic {

struct ModelShape {
  std::string name;
  std::string source;  // where the dimensions come from

  int64_t num_layers = 0;      // of the decoder
  int64_t encoder_layers = 0;  // 0: decoder only
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  bool tied_embedding = false;

  // Experts
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t expert_intermediate = 0;
  int64_t dense_layers = 0;         // first layers without experts; of an encoder-decoder: in all
  int64_t dense_intermediate = 0;   // of those
  int64_t shared_intermediate = 0;  // of all shared experts, or of a dense MLP beside the experts
  bool shared_gate = false;
  bool gated = true;  // three matrices; else two
  bool mlp_bias = false;

  // Attention
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // never derived: Qwen3 and gpt-oss have heads x head_dim != hidden
  bool qkv_bias = false;
  bool output_bias = false;
  // Multi-head latent attention; kv_lora_rank 0: none
  int64_t q_lora_rank = 0;  // 0: one query matrix
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_dim = 0;
  int64_t qk_rope_dim = 0;
  int64_t v_head_dim = 0;
  // Of it, positions that an indexer chooses; 0: attention is to all
  int64_t index_topk = 0;
  int64_t index_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_layers = 0;  // layers that have one, the others go by their choice

  bool output_gate = false;  // a projection as wide as the queries
  // Layers with linear attention in the place of that; 0: none
  int64_t linear_layers = 0;
  int64_t linear_key_heads = 0;
  int64_t linear_value_heads = 0;
  int64_t linear_key_dim = 0;
  int64_t linear_value_dim = 0;
  int64_t linear_conv_width = 0;

  double bytes_per_weight = 2;         // dense weights
  double expert_bytes_per_weight = 2;  // 0.53125: MXFP4 with its block scales; 0.5625: W4A16
  int64_t kv_bytes_per_value = 2;
  // What one expert takes, where a layout has been chosen; 0: parameters x bytes per weight.
  uint64_t expert_blob_bytes = 0;
  uint64_t dense_blob_bytes = 0;  // likewise of all dense weights

  bool latent_attention() const { return kv_lora_rank > 0; }
  int64_t sparse_layers() const { return num_layers + encoder_layers - dense_layers; }

  uint64_t ExpertParameters() const;
  uint64_t ExpertBytes() const;
  // Layers with keys and values.
  int64_t attention_layers() const { return num_layers - linear_layers; }
  // QKV projections (or what stands for them), and the output projection, of one layer; of layers
  // of two kinds the mean, as with what follows of one layer.
  uint64_t PreAttentionParameters() const;
  uint64_t PostAttentionParameters() const;
  uint64_t SharedParameters() const;  // shared expert and its gate
  uint64_t RouterParameters() const;
  uint64_t DenseMlpParameters() const;   // of a layer without experts
  uint64_t EmbeddingParameters() const;  // with the head
  uint64_t TotalParameters() const;
  uint64_t DenseParameters() const;  // all but routed experts
  // Dense weights of one sparse layer, streamed or kept as a whole.
  uint64_t LayerDenseBytes() const;
  uint64_t DenseBytes() const;
  uint64_t AllExpertBytes() const;

  // Keys and values, or the latent, of one token: of one layer, and of all.
  uint64_t KvBytesPerLayer() const;
  uint64_t KvBytesPerToken() const;
  // Of one sequence in one layer, and in all; 0 without linear attention.
  uint64_t StateBytesPerLayer() const;
  uint64_t StateBytesPerSequence() const;
  // Query values and attention output of one token, and its new keys and values: what goes between
  // device and host for attention on the CPU.
  uint64_t AttentionInBytes() const;
  uint64_t AttentionOutBytes() const;
  // Operations of one query on one position, both products, all heads of one layer.
  double AttentionFlopPerPosition() const;
  // Of queries that see so many positions together; with an indexer they attend to few of them, and
  // score all.
  double AttentionFlop(double positions, double queries) const;

  // Throws Error(kInvalidArgument), naming `what`, for contradictory or absurd dimensions.
  void Check(std::string_view what) const;
};

ModelShape ShapeOf(const ModelConfig& config, std::string name);

// A preset: one mapping of the names in configs/models. Throws Error(kInvalidArgument) with file,
// line and key.
ModelShape ParseModelShape(std::string_view yaml, const std::string& file);

// Experts of a layer that at least one of `tokens` tokens uses, each token choosing k of E at
// random: E (1 - (1 - k/E)^tokens).
double ExpectedActiveExperts(int64_t num_experts, int64_t top_k, double tokens);

}  // namespace moesaic
