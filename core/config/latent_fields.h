// What families with multi-head latent attention read of config.json in the same way, and where
// their tensors are. Internal to core/config; throws as family_fields.h says.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "core/base/json_fields.h"
#include "core/config/family_fields.h"
#include "core/config/model_config.h"

namespace moesaic {

struct LatentDefaults {
  int64_t heads = 0;
  int64_t q_rank = 0;
  int64_t nope_dim = 128;
  int64_t value_dim = 128;
};
// `model` has been read.
LatentSpec ReadLatent(const JsonFields& config, const LatentDefaults& defaults,
                      const ModelConfig& model);

// Of models whose tensors' names begin with `prefix`: the common names but for attention, of which
// rotated values are stored in neighbouring pairs
// (`in_pairs`) or as halves; shared experts, and the correction of the router's choice.
TensorPlan LatentTensors(const LatentSpec& spec, bool in_pairs,
                         const std::string& prefix = "model.");

// Layers whose MLP is dense where mlp_layer_types says so, without it the first so many.
void AddListedLayers(const JsonFields& config, int64_t layers, int64_t dense_layers,
                     const LayerSpec& dense, const ExpertsSpec& experts, ModelConfig& model);

// What DeepSeek-V3 and those that are made like it have in config.json where it says nothing.
struct DeepseekDefaults {
  ModelDefaults model;
  int64_t layers = 0;
  LatentDefaults latent;
  int64_t groups = 1;
  int64_t groups_kept = 1;
  int64_t dense_width = 0;
};
// What these models read in the same way: all but which layers are dense, and names of tensors.
struct DeepseekParts {
  int64_t layers = 0;
  LayerSpec dense;
  ExpertsSpec experts;

  const LatentSpec& latent() const { return std::get<LatentSpec>(dense.mixer); }
};
DeepseekParts ReadDeepseekParts(const JsonFields& config, const DeepseekDefaults& defaults,
                                ModelConfig& model);

// All of a model of DeepSeek-V3's family whose tensors' names begin with `prefix` and "model.".
void ReadDeepseekV3(const JsonFields& config, const std::string& prefix, ModelConfig& model);
struct IndexerDefaults {
  int64_t heads = 0;
  RopeForm rope_form = RopeForm::kHalf;  // nothing in config.json says it
};
// All of a model whose latent attention sees the positions that an indexer chooses, one in each
// layer.
void ReadIndexedLatent(const JsonFields& config, const DeepseekDefaults& defaults,
                       const IndexerDefaults& indexer, ModelConfig& model);

// Settings of these families that no release has otherwise.
void RefuseBiases(const JsonFields& config);
void RequireString(const JsonFields& config, const char* key, const char* only);

}  // namespace moesaic
