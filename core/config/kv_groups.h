// KvGroups: layers whose keys and values are in blocks that are allocated together: those with the
// same kind of mixer, and so the same layout, and the same window. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/config/model_config.h"

namespace moesaic {

struct KvGroups {
  static constexpr size_t kNone = SIZE_MAX;  // of a layer without keys and values

  std::vector<int64_t> windows;  // [groups] tokens; 0: all of the context
  std::vector<size_t> of_layer;  // [layers] group
  // [layers] how many layers before it have the same kind of mixer: each kind keeps its blocks in
  // memory of its own.
  std::vector<int64_t> index;

  size_t count() const { return windows.size(); }
};

// In the order of their first layers.
KvGroups KvGroupsOf(const ModelConfig& config);

}  // namespace moesaic
