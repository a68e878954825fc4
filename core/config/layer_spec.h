// LayerSpec: the parts of one decoder layer, as data. A family's file makes it of config.json, and
// whoever needs a size of a layer reads it here. Plain data.
#pragma once

#include <cstdint>
#include <variant>

#include "core/config/mixer_spec.h"
#include "core/config/norm_spec.h"
#include "core/config/router_spec.h"

namespace moesaic {

enum class Activation {
  kSilu,          // down(silu(gate(x)) * up(x))
  kClampedSwiglu  // down((u + 1) g sigmoid(alpha g)), g = min(gate, limit), |u| = |up| <= limit
};

struct MlpSpec {
  int64_t width = 0;  // 0: there is none
  Activation activation = Activation::kSilu;
  bool gated = true;  // down(activation(gate(x)) * up(x)); else down(activation(up(x)))
  bool bias = false;
  // Of kClampedSwiglu.
  double swiglu_alpha = 0.0;
  double swiglu_limit = 0.0;

  int64_t matrices() const { return gated ? 3 : 2; }
  int64_t Weights(int64_t hidden_size) const { return matrices() * hidden_size * width; }
  int64_t Biases(int64_t hidden_size) const {
    return bias ? (matrices() - 1) * width + hidden_size : 0;
  }
  int64_t Parameters(int64_t hidden_size) const {
    return Weights(hidden_size) + Biases(hidden_size);
  }
};

struct ExpertsSpec {
  RouterSpec router;
  MlpSpec expert;            // each of them
  MlpSpec shared;            // what every token runs besides
  bool shared_gate = false;  // its output times the sigmoid of one number per token (Qwen2-MoE)
  // The experts read what the layer reads, and are routed before its mixer; `shared` reads what the
  // mixer has made of it, through a norm of its own (Arctic).
  bool read_input = false;
};

// Of a dense layer, or of a sparse one.
using LayerMlp = std::variant<MlpSpec, ExpertsSpec>;

struct LayerSpec {
  NormSpec norm;  // before the mixer, and before the MLP
  MixerSpec mixer;
  LayerMlp mlp;
  // What the mixer and the MLP that every token runs are multiplied with before they are added to
  // the residual stream. The experts' part of it is in their weights (RouterSpec::scale).
  double residual_scale = 1.0;

  bool sparse() const { return std::holds_alternative<ExpertsSpec>(mlp); }
  // Of a sparse layer.
  const ExpertsSpec& experts() const { return std::get<ExpertsSpec>(mlp); }
  // What every token runs: the MLP of a dense layer, or the shared expert.
  const MlpSpec& dense_mlp() const {
    const auto* const of_dense_layer = std::get_if<MlpSpec>(&mlp);
    return of_dense_layer != nullptr ? *of_dense_layer : experts().shared;
  }
  // Whether its experts are known before its mixer runs.
  bool routes_first() const { return sparse() && experts().read_input; }
  // Whether what every token runs has a norm of its own.
  bool has_mlp_norm() const { return routes_first() && dense_mlp().width > 0; }
  // Whether it attends to keys and values; else it has state of another kind.
  bool has_attention() const { return !std::holds_alternative<DeltaNetSpec>(mixer); }
  const GroupedQuerySpec& attention() const { return std::get<GroupedQuerySpec>(mixer); }
};

}  // namespace moesaic
