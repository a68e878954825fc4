// PassBlocks: where the rows of a pass are in their sequences, and where the blocks of these are in
// the memory of the layer that runs.
//
// Owned by a mixer with keys and values in blocks. Begin and Locate are for its thread; the rest is
// read by any, while neither runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/function_ref.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

class PassBlocks {
 public:
  // `groups` of layers (core/config/kv_groups.h).
  PassBlocks(const ModelLimits& limits, size_t groups);

  // The batch lives until the pass ends.
  void Begin(const ForwardBatch& batch);
  // The blocks of these slices, which are of a layer of this group; `address` of one's number.
  void Locate(SliceRange slices, size_t group,
              FunctionRef<const std::byte*(int32_t block)> address);

  const ForwardBatch& batch() const { return batch_; }
  // Where a position of the row's sequence is.
  int32_t BlockAt(int64_t row, size_t group, int64_t position) const {
    return BlockOf(SliceOf(row), group, groups_, static_cast<size_t>(position / kKvBlockTokens));
  }
  const SequenceSlice& SliceOf(int64_t row) const { return batch_.slices[IndexOf(row)]; }
  int64_t PositionOf(int64_t row) const {
    const SequenceSlice& slice = SliceOf(row);
    return slice.start_position + row - slice.first_row;
  }
  // Of the row's sequence, in order, as they were located; null for one that was given back.
  const std::byte* const* Of(int64_t row) const { return pointers_.data() + first_[IndexOf(row)]; }

 private:
  size_t IndexOf(int64_t row) const {
    return static_cast<size_t>(row_slice_[static_cast<size_t>(row)]);
  }

  const size_t groups_;
  ForwardBatch batch_;
  std::vector<const std::byte*> pointers_;  // of all slices, one after another
  std::vector<int64_t> first_;              // [slices] into pointers_
  std::vector<int32_t> row_slice_;          // [rows]
};

}  // namespace moesaic
