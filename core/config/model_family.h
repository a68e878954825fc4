// The families of models, and what their configuration means when it leaves a key out. Internal to
// core/config.
#pragma once

#include <cstdint>

#include "core/base/json_fields.h"
#include "core/config/model_config.h"

namespace moesaic {

// What transformers' configuration classes fill in for a key that is missing (transformers 5.23,
// src/transformers/models/*/configuration_*.py; docs/models.md). -1: the family has no such key or
// default.
struct FamilyDefaults {
  ModelFamily family;
  const char* architecture;
  const char* model_type;
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  int64_t num_kv_heads;  // -1: as many as heads
  int64_t max_position;
  double rms_norm_eps, rope_theta;
  const char* experts_key;
  int64_t num_experts, top_k, moe_intermediate_size;
  int64_t bos, eos, pad;
};

// The family of a config.json, by `architectures` and `model_type`. Throws Error(kUnsupported)
// naming what was found and what is supported, Error(kCorrupt) when the two contradict each other.
const FamilyDefaults& FindFamily(const JsonFields& config);

}  // namespace moesaic
