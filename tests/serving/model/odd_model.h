// A made-up model whose sizes nothing divides, for tests of how its dense part is cut.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/hash.h"
#include "core/config/model_config.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

// Tensors of any shape: matrices about 1 / sqrt(k), vectors (norm weights) from 0.5 to 1.5.
class MadeUpTensors : public TensorSource {
 public:
  DType Require(const PlannedTensor&, std::span<const int64_t>) const override {
    return DType::kF32;
  }
  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    const uint64_t seed = Hash64(std::as_bytes(std::span(tensor.name)));
    auto* const out = reinterpret_cast<float*>(destination.data());
    for (int64_t i = 0; i < (row_end - row_begin) * row_elements; ++i) {
      uint64_t x =
          seed + static_cast<uint64_t>(row_begin * row_elements + i + 1) * 0x9E3779B97F4A7C15;
      x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
      x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
      const float uniform = static_cast<float>(x >> 40) / static_cast<float>(1 << 24);
      out[i] = row_elements == 1
                   ? 0.5f + uniform
                   : (2 * uniform - 1) * 2 / std::sqrt(static_cast<float>(row_elements));
    }
  }
  uint64_t Fingerprint() const override { return 1; }
};

// Sizes that nothing divides: 5 KV heads, panels that are not full.
inline ModelConfig OddModel(std::string_view quantization = "null") {
  return ParseModelConfig(R"({
    "quantization_config": )" +
                              std::string(quantization) + R"(,
    "model_type": "qwen2_moe", "vocab_size": 171, "hidden_size": 104, "num_hidden_layers": 3,
    "num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 16, "qkv_bias": false,
    "max_position_embeddings": 512, "use_sliding_window": true, "sliding_window": 40,
    "layer_types": ["full_attention", "full_attention", "sliding_attention"],
    "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true, "mlp_only_layers": [0],
    "moe_intermediate_size": 24, "intermediate_size": 136, "shared_expert_intermediate_size": 56
  })",
                          "odd_model");
}

// Likewise with biases, halves of heads that rotate, and experts that are chosen by sigmoids, a
// correction and groups.
inline ModelConfig OddGroupsModel() {
  return ParseModelConfig(R"({
    "model_type": "glm4_moe", "vocab_size": 171, "hidden_size": 104, "num_hidden_layers": 3,
    "num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 16, "attention_bias": true,
    "use_qk_norm": true, "partial_rotary_factor": 0.5, "max_position_embeddings": 512,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true, "n_group": 3,
    "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
    "n_shared_experts": 1, "moe_intermediate_size": 24, "intermediate_size": 136
  })",
                          "odd_groups_model");
}

}  // namespace moesaic
