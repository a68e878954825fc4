// Where a model's tensors are in a GGUF file. Internal to core/config.
#pragma once

#include "core/config/model_config.h"
#include "core/io/gguf.h"

namespace moesaic {

// GGUF has the same names for all architectures; which of several a file has (norms, stacked
// experts or old ones, gate and up matrices in one tensor or two) is read off its tensors.
TensorPlan GgufTensors(const GgufHeader& header, const ModelConfig& model);

}  // namespace moesaic
