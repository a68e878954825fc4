// Where a model's tensors are in a GGUF file. Internal to core/config.
#pragma once

#include <string_view>

#include "core/config/model_config.h"
#include "core/io/gguf.h"

namespace moesaic {

// GGUF has the same names for all architectures; which of several a file has (norms, stacked
// experts or old ones) is read off its tensors. Throws Error(kUnsupported) for experts that are
// stored in a way that is not read.
TensorPlan GgufTensors(const GgufHeader& header, const ModelConfig& model, std::string_view name);

}  // namespace moesaic
