// Layers made by hand, and changes to all layers of a model, for tests.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"

namespace moesaic {

// Without attention.
inline LayerSpec SparseLayer(int64_t experts, int64_t top_k, int64_t expert_width = 0) {
  ExpertsSpec spec;
  spec.router.experts = experts;
  spec.router.top_k = top_k;
  spec.expert.width = expert_width;
  LayerSpec layer;
  layer.mlp = spec;
  return layer;
}

template <typename Change>
void ChangeAttention(ModelConfig& model, Change change) {
  for (LayerSpec& layer : model.layers) change(std::get<GroupedQuerySpec>(layer.mixer));
}

template <typename Change>
void ChangeExperts(ModelConfig& model, Change change) {
  for (LayerSpec& layer : model.layers) {
    if (layer.sparse()) change(std::get<ExpertsSpec>(layer.mlp));
  }
}

}  // namespace moesaic
