// The experts of a model, as its specs have them: their grid, and all of them in order.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/expert_id.h"
#include "core/config/model_config.h"

namespace moesaic {

ExpertGrid GridOf(const ModelConfig& config);

// The numbers of the sparse layers, ascending.
std::vector<int32_t> LayersWithExperts(const ModelConfig& config);

// Of the sparse layers, layer after layer.
std::vector<ExpertId> AllExperts(const ModelConfig& config);

}  // namespace moesaic
