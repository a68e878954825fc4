// What a GGUF file says of its model, as ModelConfig: the config.json that its metadata stand for,
// and where the tensors are under GGUF's names (llama.cpp, conversion/*.py and src/llama-arch.cpp).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/base/json_fields.h"
#include "core/config/model_config.h"
#include "core/io/gguf.h"

namespace moesaic {

// The config.json of the model that was converted, as far as the engine reads one; what the file
// does not say is filled in as llama.cpp does. `name` is the file that messages name. Throws Error:
// kCorrupt (a key is missing or wrong), kUnsupported (the architecture, or a value that no served
// model has), naming the key.
nlohmann::json GgufConfigJson(const GgufHeader& header, std::string_view name);

// The token that the key names; nullopt: none. Throws Error(kCorrupt) for what is no id.
std::optional<int64_t> GgufTokenId(const JsonFields& metadata, std::string_view key);

// Throws likewise, and as ParseModelConfig.
ModelConfig ParseGgufConfig(const GgufHeader& header, std::string_view name);

}  // namespace moesaic
