#include "core/config/kv_groups.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

namespace moesaic {

KvGroups KvGroupsOf(const ModelConfig& config) {
  KvGroups groups;
  std::vector<std::pair<size_t, int64_t>> kinds;  // of mixers, and windows
  std::array<int64_t, std::variant_size_v<MixerSpec>> layers = {};
  for (const LayerSpec& layer : config.layers) {
    if (!layer.has_attention()) {
      groups.of_layer.push_back(KvGroups::kNone);
      groups.index.push_back(-1);
      continue;
    }
    const std::pair kind = {layer.mixer.index(), WindowOf(layer.mixer)};
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    groups.of_layer.push_back(static_cast<size_t>(found - kinds.begin()));
    groups.index.push_back(layers[kind.first]++);
    if (found != kinds.end()) continue;
    kinds.push_back(kind);
    groups.windows.push_back(kind.second);
  }
  return groups;
}

}  // namespace moesaic
