// What LayerSpecs can say and the engine cannot serve yet: the one list of it, for whoever lifts a
// restriction. Internal to core/config.
#pragma once

#include <string_view>

#include "core/config/model_config.h"

namespace moesaic {

// Throws Error(kUnsupported) naming `file`, the layer and the field, where a layer differs from
// the first in what is still of one size in all of them, or has a part that no kernel computes.
void CheckServedLayers(const ModelConfig& model, std::string_view file);

}  // namespace moesaic
