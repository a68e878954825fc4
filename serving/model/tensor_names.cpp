#include "serving/model/tensor_names.h"

#include <fmt/format.h>

namespace moesaic {

std::string TensorNames::InputNorm(int64_t layer) const {
  return fmt::format("model.layers.{}.input_layernorm.weight", layer);
}

std::string TensorNames::PostAttentionNorm(int64_t layer) const {
  return fmt::format("model.layers.{}.post_attention_layernorm.weight", layer);
}

std::string TensorNames::Attention(int64_t layer, const char* part, const char* kind) const {
  return fmt::format("model.layers.{}.self_attn.{}.{}", layer, part, kind);
}

std::string TensorNames::Router(int64_t layer) const {
  return family_ == ModelFamily::kMixtral
             ? fmt::format("model.layers.{}.block_sparse_moe.gate.weight", layer)
             : fmt::format("model.layers.{}.mlp.gate.weight", layer);
}

MlpTensorNames TensorNames::Expert(int64_t layer, int64_t expert) const {
  if (family_ == ModelFamily::kMixtral) {
    const std::string prefix =
        fmt::format("model.layers.{}.block_sparse_moe.experts.{}.", layer, expert);
    return {prefix + "w1.weight", prefix + "w3.weight", prefix + "w2.weight"};
  }
  const std::string prefix = fmt::format("model.layers.{}.mlp.experts.{}.", layer, expert);
  return {prefix + "gate_proj.weight", prefix + "up_proj.weight", prefix + "down_proj.weight"};
}

MlpTensorNames TensorNames::DenseMlp(int64_t layer) const {
  const std::string prefix = fmt::format("model.layers.{}.mlp.", layer);
  return {prefix + "gate_proj.weight", prefix + "up_proj.weight", prefix + "down_proj.weight"};
}

MlpTensorNames TensorNames::SharedExpert(int64_t layer) const {
  const std::string prefix = fmt::format("model.layers.{}.mlp.shared_expert.", layer);
  return {prefix + "gate_proj.weight", prefix + "up_proj.weight", prefix + "down_proj.weight"};
}

std::string TensorNames::SharedExpertGate(int64_t layer) const {
  return fmt::format("model.layers.{}.mlp.shared_expert_gate.weight", layer);
}

}  // namespace moesaic
