// What config.json the metadata of GGUF models with latent attention stand for. Internal to
// core/config.
#pragma once

#include <nlohmann/json.hpp>

#include "core/config/gguf_fields.h"

namespace moesaic {

// `deepseek2`: DeepSeek-V2 and, with a sigmoid router, V3, Kimi-K2 and GLM-4.7-Flash; says which.
void ReadGgufDeepseek2(const GgufFields& fields, nlohmann::json& config);
// `deepseek32`: DeepSeek-V3.2, with an indexer in each layer.
void ReadGgufDeepseek32(const GgufFields& fields, nlohmann::json& config);
// `glm-dsa`: GLM-5, 5.1 and 5.2, whose layers may share what an earlier one's indexer chose.
void ReadGgufGlmDsa(const GgufFields& fields, nlohmann::json& config);

}  // namespace moesaic
