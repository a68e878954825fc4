// What the supported families call their tensors in a Hugging Face checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "core/config/model_config.h"

namespace moesaic {

struct MlpTensorNames {
  std::string gate;  // [intermediate, hidden]
  std::string up;    // [intermediate, hidden]
  std::string down;  // [hidden, intermediate]
};

// All names are complete ("model.layers.3.mlp.gate.weight").
class TensorNames {
 public:
  explicit TensorNames(ModelFamily family) : family_(family) {}

  std::string Embedding() const { return "model.embed_tokens.weight"; }  // [vocab, hidden]
  std::string FinalNorm() const { return "model.norm.weight"; }          // [hidden]
  std::string Head() const { return "lm_head.weight"; }                  // [vocab, hidden]
  std::string InputNorm(int64_t layer) const;                            // [hidden]
  std::string PostAttentionNorm(int64_t layer) const;                    // [hidden]
  // `part` is q_proj, k_proj, v_proj, o_proj, q_norm or k_norm; `kind` is weight or bias.
  std::string Attention(int64_t layer, const char* part, const char* kind) const;
  std::string Router(int64_t layer) const;  // [experts, hidden]
  MlpTensorNames Expert(int64_t layer, int64_t expert) const;
  MlpTensorNames DenseMlp(int64_t layer) const;
  MlpTensorNames SharedExpert(int64_t layer) const;
  std::string SharedExpertGate(int64_t layer) const;  // [1, hidden]

 private:
  ModelFamily family_;
};

}  // namespace moesaic
