#include "core/io/tensor_ranges.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/io/checkpoint_index.h"

namespace moesaic {

void CheckNoOverlap(const std::map<std::string, TensorInfo>& tensors, std::string_view file) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  order.reserve(tensors.size());
  for (const auto& entry : tensors) {
    if (entry.second.extent.bytes > 0) order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.extent.offset < b->second.extent.offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const Extent& before = order[i - 1]->second.extent;
    const Extent& after = order[i]->second.extent;
    if (before.offset + before.bytes > after.offset) {
      Fail(ErrorKind::kCorrupt,
           "{}: the tensors {} and {} overlap: bytes {} to {} and {} to {} of the file; expected "
           "ranges of "
           "their own",
           file, QuotedName(order[i - 1]->first), QuotedName(order[i]->first), before.offset,
           before.offset + before.bytes, after.offset, after.offset + after.bytes);
    }
  }
}

}  // namespace moesaic
