// StepTables: what the kernels of a dense part are told of a step, by row and by sequence
// (device_dense.h), in the host's memory.
//
// Plain data. No allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

struct StepTables {
  StepTables(const ModelLimits& limits, size_t groups);
  // Tokens and positions of a batch within these limits (CHECK).
  void FillRows(const ForwardBatch& batch, const ModelLimits& limits);
  // Likewise, all.
  void Fill(const ForwardBatch& batch, const ModelLimits& limits);

  std::vector<int32_t> tokens;     // [rows]
  std::vector<int32_t> positions;  // [rows]
  // Of each group of layers (core/config/kv_groups.h):
  struct Places {
    std::vector<int32_t> slots;   // [rows] places in the KV cache
    std::vector<int32_t> blocks;  // of all slices, one after another
  };
  std::vector<Places> groups;
  std::vector<cuda::AttentionSequence> sequences;
  int64_t max_rows = 0;     // of a slice
  int64_t max_context = 0;  // positions
};

}  // namespace moesaic
