// KvGroups: layers whose keys and values are in blocks that are allocated together: they have the
// same kind of mixer, and so the same layout, and the same window. Plain data.
//
// All groups take their blocks from one pool, so a block is as large for each: it has room for
// layers_of_block layers. Where windows are of more layers than full attention, or of fewer, the
// larger kind is several groups.
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
  std::vector<int64_t> index;    // [layers] place in a block of its group; -1: none
  int64_t layers_of_block = 0;   // of a group at most

  size_t count() const { return windows.size(); }
};

// In the order of their first layers. Few groups, and little of a block that a group has no layer
// for: the least that so many groups can have.
KvGroups KvGroupsOf(const ModelConfig& config);

}  // namespace moesaic
