#include "serving/model/step_tables.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "core/base/check.h"
#include "serving/model/dense_sizes.h"

namespace moesaic {

StepTables::StepTables(const ModelLimits& limits, size_t num_groups) : groups(num_groups) {
  const auto rows = static_cast<size_t>(limits.max_batch_tokens);
  tokens.reserve(rows);
  positions.reserve(rows);
  sequences.reserve(static_cast<size_t>(limits.max_sequences));
  for (Places& places : groups) {
    places.slots.reserve(rows);
    places.blocks.reserve(static_cast<size_t>(MostBlocks(limits)));
  }
}

void StepTables::FillRows(const ForwardBatch& batch, const ModelLimits& limits) {
  CHECK_LE(std::ssize(batch.tokens), limits.max_batch_tokens);
  tokens.assign(batch.tokens.begin(), batch.tokens.end());
  positions.clear();
  for (const SequenceSlice& slice : batch.slices) {
    for (int64_t i = 0; i < slice.num_tokens; ++i) {
      positions.push_back(static_cast<int32_t>(slice.start_position + i));
    }
  }
}

void StepTables::Fill(const ForwardBatch& batch, const ModelLimits& limits) {
  CHECK_LE(std::ssize(batch.slices), limits.max_sequences);
  FillRows(batch, limits);
  for (Places& places : groups) {
    places.slots.clear();
    places.blocks.clear();
  }
  sequences.clear();
  max_rows = 0;
  max_context = 0;
  for (const SequenceSlice& slice : batch.slices) {
    const int64_t end = slice.start_position + slice.num_tokens;
    sequences.push_back({.first_row = static_cast<int32_t>(slice.first_row),
                         .rows = static_cast<int32_t>(slice.num_tokens),
                         .context_end = static_cast<int32_t>(slice.start_position + 1),
                         .first_block = static_cast<int32_t>(groups.front().blocks.size())});
    max_rows = std::max(max_rows, slice.num_tokens);
    max_context = std::max(max_context, end);
    const auto used = static_cast<size_t>((end + cuda::kBlockTokens - 1) / cuda::kBlockTokens);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t i = 0; i < used; ++i) {
        groups[g].blocks.push_back(BlockOf(slice, g, groups.size(), i));
      }
      for (int64_t position = slice.start_position; position < end; ++position) {
        const int32_t block =
            BlockOf(slice, g, groups.size(), static_cast<size_t>(position / cuda::kBlockTokens));
        groups[g].slots.push_back(block * static_cast<int32_t>(cuda::kBlockTokens) +
                                  static_cast<int32_t>(position % cuda::kBlockTokens));
      }
    }
  }
}

}  // namespace moesaic
