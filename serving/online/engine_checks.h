// What an engine's options may not be, whatever the memory: choices that exclude each other, and
// what this model has not.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "serving/online/engine_options.h"

namespace moesaic {

// Throws Error(kInvalidArgument) that says what to change.
void CheckEngineOptions(const EngineOptions& options, const ModelConfig& config);
// In both modes: throws Error(kInvalidArgument) for more tokens than the model has positions, and
// for a type of keys and values that its layers do not keep.
void CheckContext(const EngineOptions& options, const ModelConfig& config);

}  // namespace moesaic
