// ModelFamily: what a family of models is called and how its config.json is read. A family is one
// file of core/config/families; core/CMakeLists.txt lists them.
#pragma once

#include <span>
#include <string_view>

#include "core/base/json_fields.h"
#include "core/config/model_config.h"

namespace moesaic {

struct ModelFamily {
  std::string_view architecture;  // "Qwen3MoeForCausalLM"
  std::string_view model_type;    // "qwen3_moe"
  // Fills all but these two names. Throws as ParseModelConfig.
  void (*read)(const JsonFields& config, ModelConfig& model);
  // A model_type that files of this architecture may have as well; empty: none.
  std::string_view other_model_type = {};
};

// All of them. The definition is generated from the list in core/CMakeLists.txt.
std::span<const ModelFamily* const> ModelFamilies();

// The family of a config.json, by `architectures` and `model_type`. Throws Error(kUnsupported)
// naming what was found and what is supported, Error(kCorrupt) when the two contradict each other.
const ModelFamily& FindFamily(const JsonFields& config);

}  // namespace moesaic
