#include "core/config/kv_groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace moesaic {
namespace {

// Each has a table of blocks in every sequence.
constexpr int64_t kMostGroups = 8;

// counts: layers of each kind.
int64_t LayersOfBlock(const std::vector<int64_t>& counts) {
  if (counts.empty()) return 0;
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  int64_t best = most;  // a group for each kind
  int64_t least_room = most * std::ssize(counts);
  for (int64_t layers = most - 1; layers > 0; --layers) {
    int64_t groups = 0;
    for (const int64_t count : counts) groups += (count + layers - 1) / layers;
    if (groups > kMostGroups || groups * layers >= least_room) continue;
    best = layers;
    least_room = groups * layers;
    if (least_room == all) break;
  }
  return best;
}

}  // namespace

KvGroups KvGroupsOf(const ModelConfig& config) {
  using Kind = std::pair<size_t, int64_t>;  // of mixer, and window
  std::vector<Kind> kinds;
  std::vector<int64_t> counts;  // [kinds] layers
  std::vector<size_t> of_layer;
  for (const LayerSpec& layer : config.layers) {
    of_layer.push_back(KvGroups::kNone);
    if (!layer.has_attention()) continue;
    const Kind kind = {layer.mixer.index(), WindowOf(layer.mixer)};
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    of_layer.back() = static_cast<size_t>(found - kinds.begin());
    if (found == kinds.end()) {
      kinds.push_back(kind);
      counts.push_back(0);
    }
    ++counts[of_layer.back()];
  }
  KvGroups groups;
  groups.layers_of_block = LayersOfBlock(counts);
  groups.of_layer.reserve(of_layer.size());
  groups.index.reserve(of_layer.size());
  std::vector<int64_t> seen(kinds.size(), 0);
  std::vector<size_t> open(kinds.size(), KvGroups::kNone);  // the group that is being filled
  for (const size_t kind : of_layer) {
    if (kind == KvGroups::kNone) {
      groups.of_layer.push_back(KvGroups::kNone);
      groups.index.push_back(-1);
      continue;
    }
    const int64_t index = seen[kind]++ % groups.layers_of_block;
    if (index == 0) {
      open[kind] = groups.count();
      groups.windows.push_back(kinds[kind].second);
    }
    groups.of_layer.push_back(open[kind]);
    groups.index.push_back(index);
  }
  return groups;
}

}  // namespace moesaic
