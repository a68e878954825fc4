#include "serving/model/pass_blocks.h"

#include <algorithm>

namespace moesaic {

PassBlocks::PassBlocks(const ModelLimits& limits, size_t groups) : groups_(groups) {
  pointers_.reserve(static_cast<size_t>(limits.num_kv_blocks) + 64);
  row_slice_.resize(static_cast<size_t>(limits.max_batch_tokens));
}

void PassBlocks::Begin(const ForwardBatch& batch) {
  batch_ = batch;
  first_.clear();
  pointers_.clear();
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    const SequenceSlice& slice = batch.slices[s];
    first_.push_back(static_cast<int64_t>(pointers_.size()));
    pointers_.resize(pointers_.size() + slice.blocks.size());
    std::fill_n(row_slice_.begin() + slice.first_row, slice.num_tokens, static_cast<int32_t>(s));
  }
}

void PassBlocks::Locate(SliceRange slices, size_t group,
                        FunctionRef<const std::byte*(int32_t block)> address) {
  for (int64_t s = slices.begin; s < slices.end; ++s) {
    const std::byte** pointers = pointers_.data() + first_[static_cast<size_t>(s)];
    const SequenceSlice& slice = batch_.slices[static_cast<size_t>(s)];
    for (size_t i = 0; i < slice.blocks.size(); ++i) {
      const int32_t block = BlockOf(slice, group, groups_, i);
      *pointers++ = block == SequenceBlocks::kGivenBack ? nullptr : address(block);
    }
  }
}

}  // namespace moesaic
