#include "core/config/kv_groups.h"

#include <algorithm>

namespace moesaic {

KvGroups KvGroupsOf(const ModelConfig& config) {
  KvGroups groups;
  for (const LayerSpec& layer : config.layers) {
    if (!layer.has_attention()) {
      groups.of_layer.push_back(KvGroups::kNone);
      continue;
    }
    const int64_t window = layer.attention().window;
    const auto found = std::find(groups.windows.begin(), groups.windows.end(), window);
    groups.of_layer.push_back(static_cast<size_t>(found - groups.windows.begin()));
    if (found == groups.windows.end()) groups.windows.push_back(window);
  }
  return groups;
}

}  // namespace moesaic
