// MixerSpec: what mixes the tokens of a sequence in a decoder layer, as data. Its alternative says
// which code computes it, the fields say with which sizes. Plain data.
#pragma once

#include <cstdint>
#include <variant>

#include "core/config/norm_spec.h"

namespace moesaic {

enum class RopeKind { kDefault, kLinear, kDynamicNtk, kYarn, kLlama3 };

// How angles follow from positions.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position = 0;  // dynamic, yarn, llama3; defaults as transformers does
  // yarn
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: derived from factor (or mscale, mscale_all_dim)
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;

  bool operator==(const RopeConfig&) const = default;
};

// Which values of a head are rotated together.
enum class RopeForm {
  kHalf,         // j and j + rotary_dim / 2
  kInterleaved,  // 2j and 2j + 1
};

enum class QkNorm {
  kNone,
  kPerHead,     // over head_dim, one weight [head_dim] for all heads (Qwen3)
  kProjection,  // over the whole projection, weight [heads * head_dim] (OLMoE)
};

// Softmax attention whose query heads share keys and values in groups.
struct GroupedQuerySpec {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;  // the first values of each head that are rotated; the others pass
  RopeForm rope_form = RopeForm::kHalf;
  RopeConfig rope = {};
  QkNorm qk_norm = QkNorm::kNone;
  NormSpec norm = {};  // of queries and keys, with qk_norm
  int64_t window = 0;  // sliding window in tokens; 0: all of the context
  bool qkv_bias = false;
  bool output_bias = false;
  bool sinks = false;        // a score for each head beside those of the keys, without a value
  bool output_gate = false;  // what is mixed times the sigmoid of a projection as wide
  double clip_qkv = 0.0;     // bound of queries, keys and values before RoPE; 0: none
  double scale = 1.0;        // of a query's product with a key

  int64_t group() const { return heads / kv_heads; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  // Queries, keys, values and the gate.
  int64_t projected_width() const { return qkv_width() + (output_gate ? q_width() : 0); }

  // With biases and norms.
  int64_t Parameters(int64_t hidden) const {
    int64_t total = hidden * (projected_width() + q_width());
    if (qkv_bias) total += qkv_width();
    if (output_bias) total += hidden;
    if (sinks) total += heads;
    if (qk_norm == QkNorm::kPerHead) total += 2 * head_dim;
    if (qk_norm == QkNorm::kProjection) total += q_width() + kv_width();
    return total;
  }
};

// What chooses the positions that a layer of latent attention attends to (DeepSeek sparse
// attention, arXiv 2512.02556): a token keeps a key; position s of the context of token t scores
// the sum over heads h of w_h relu(q_h . k_s), where q_h is made of what queries are made of and
// w_h of t's hidden values.
struct IndexerSpec {
  int64_t heads = 0;
  int64_t dim = 0;  // of a query, and of the key; the first rope_dim values are rotated
  RopeForm rope_form = RopeForm::kHalf;
  double norm_eps = 1e-6;  // of the keys' layer norm, which has a bias

  bool operator==(const IndexerSpec&) const = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): the keys and values of
// all heads are made of one row for each token, a latent and a rotated key that the heads share.
struct LatentSpec {
  int64_t heads = 0;
  int64_t q_rank = 0;     // values that queries are made of; 0: of the hidden ones
  int64_t kv_rank = 0;    // values of the latent
  int64_t nope_dim = 0;   // of a query and a key of a head: what is not rotated,
  int64_t rope_dim = 0;   // and what is
  int64_t value_dim = 0;  // of a head
  RopeConfig rope = {};
  NormSpec norm = {};  // of the latent, and of what queries are made of
  double scale = 1.0;  // of a query's product with a key
  // Positions that a token attends to: those whose scores are the highest, the lower position of
  // equals. 0: all that it sees.
  int64_t top_k = 0;
  // Whose scores, with a top_k; without heads: what the last layer with an indexer has chosen.
  IndexerSpec indexer = {};

  int64_t query_dim() const { return nope_dim + rope_dim; }
  int64_t row_width() const { return kv_rank + rope_dim; }  // what is kept of a token
  int64_t output_width() const { return heads * value_dim; }

  // With norms.
  int64_t IndexerParameters(int64_t hidden) const {
    if (indexer.heads == 0) return 0;
    return indexer.heads * indexer.dim * q_rank + hidden * (indexer.dim + indexer.heads) +
           2 * indexer.dim;
  }
  int64_t Parameters(int64_t hidden) const {
    const int64_t queries = heads * query_dim();
    return IndexerParameters(hidden) +
           (q_rank > 0 ? q_rank * (hidden + 1 + queries) : hidden * queries) +
           hidden * row_width() + kv_rank + kv_rank * heads * (nope_dim + value_dim) +
           output_width() * hidden;
  }
};

// Tokens that a convolution sees at most: what kernels keep in registers.
inline constexpr int64_t kMostConvWidth = 4;

// Linear attention by the gated delta rule (Yang et al., Gated Delta Networks, arXiv:2412.06464): a
// sequence's state is a matrix for each value head, which decays, and is corrected towards a
// token's value where it is read with the token's key. Queries, keys and values pass a causal
// convolution of each channel first, whose last inputs are state too.
struct DeltaNetSpec {
  int64_t key_heads = 0;    // of queries and of keys
  int64_t value_heads = 0;  // a multiple
  bool by_turns = false;    // value heads have key heads by turns; else neighbours share one
  int64_t key_dim = 0;      // of a head
  int64_t value_dim = 0;
  int64_t conv_width = 0;  // tokens that the convolution sees
  NormSpec norm = {};      // of a head's output, before it is gated

  int64_t group() const { return value_heads / key_heads; }
  int64_t key_width() const { return key_heads * key_dim; }
  int64_t value_width() const { return value_heads * value_dim; }
  // Queries, keys and values.
  int64_t channels() const { return 2 * key_width() + value_width(); }

  // With the convolution, rates and the norm.
  int64_t Parameters(int64_t hidden) const {
    return hidden * (channels() + 2 * value_width() + 2 * value_heads) + channels() * conv_width +
           2 * value_heads + value_dim;
  }
};

// A new kind of mixer is one more alternative.
using MixerSpec = std::variant<GroupedQuerySpec, LatentSpec, DeltaNetSpec>;

inline int64_t ParametersOf(const MixerSpec& mixer, int64_t hidden) {
  return std::visit([&](const auto& spec) { return spec.Parameters(hidden); }, mixer);
}

// How queries and keys are rotated; null: there are none.
inline const RopeConfig* RopeOf(const GroupedQuerySpec& spec) { return &spec.rope; }
inline const RopeConfig* RopeOf(const LatentSpec& spec) { return &spec.rope; }
inline const RopeConfig* RopeOf(const DeltaNetSpec&) { return nullptr; }
inline const RopeConfig* RopeOf(const MixerSpec& mixer) {
  return std::visit([](const auto& spec) { return RopeOf(spec); }, mixer);
}

// Tokens that are attended to; 0: all of the context.
inline int64_t WindowOf(const GroupedQuerySpec& spec) { return spec.window; }
inline int64_t WindowOf(const LatentSpec&) { return 0; }
inline int64_t WindowOf(const DeltaNetSpec&) { return 0; }
inline int64_t WindowOf(const MixerSpec& mixer) {
  return std::visit([](const auto& spec) { return WindowOf(spec); }, mixer);
}

}  // namespace moesaic
