#include "serving/model/experts_of_model.h"

#include <cstddef>

namespace moesaic {

ExpertGrid GridOf(const ModelConfig& config) {
  return ExpertGrid(static_cast<int>(config.num_layers()), static_cast<int>(config.num_experts()));
}

std::vector<int32_t> LayersWithExperts(const ModelConfig& config) {
  std::vector<int32_t> layers;
  layers.reserve(static_cast<size_t>(config.num_layers()));
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    if (config.is_sparse(l)) layers.push_back(static_cast<int32_t>(l));
  }
  return layers;
}

std::vector<ExpertId> AllExperts(const ModelConfig& config) {
  const ExpertGrid grid = GridOf(config);
  std::vector<ExpertId> experts;
  for (int layer = 0; layer < grid.num_layers(); ++layer) {
    if (!config.is_sparse(layer)) continue;
    for (int index = 0; index < grid.num_experts(); ++index) {
      experts.push_back(grid.Id(layer * grid.num_experts() + index));
    }
  }
  return experts;
}

}  // namespace moesaic
