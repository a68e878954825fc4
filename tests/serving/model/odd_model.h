// A made-up model whose sizes nothing divides, for tests of how its dense part is cut.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/hash.h"
#include "core/config/model_config.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

// Tensors of any shape: matrices about 1 / sqrt(k), vectors (norm weights) from 0.5 to 1.5.
class MadeUpTensors : public TensorSource {
 public:
  DType Require(const std::string&, std::span<const int64_t>) const override { return DType::kF32; }
  void ReadRows(const std::string& name, int64_t row_begin, int64_t row_end, int64_t row_elements,
                std::span<std::byte> destination) const override {
    const uint64_t seed = Hash64(std::as_bytes(std::span(name)));
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
inline ModelConfig OddModel() {
  ModelConfig c;
  c.family = ModelFamily::kQwen2Moe;
  c.vocab_size = 171;
  c.hidden_size = 104;
  c.num_layers = 3;
  c.num_heads = 10;
  c.num_kv_heads = 5;
  c.head_dim = 16;
  c.max_position = 512;
  c.layer_window = {0, 0, 40};
  c.num_experts = 6;
  c.top_k = 2;
  c.norm_topk_prob = true;
  c.moe_intermediate_size = 24;
  c.dense_intermediate_size = 136;
  c.shared_intermediate_size = 56;
  c.shared_expert_gate = true;
  c.layer_is_sparse = {0, 1, 1};
  return c;
}

}  // namespace moesaic
