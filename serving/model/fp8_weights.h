// Weights of block-scaled fp8 checkpoints (DeepSeek-V3, Qwen3 FP8): float8_e4m3fn values [n, k]
// beside scales (BlockScales of the TensorPlan) `NAME_scale_inv` [ceil(n / rows), ceil(k / cols)],
// which a block of values is multiplied with; scales by channel are blocks of one row. Where the
// engine wants numbers the multiplication is one f32 product each. Weights in memory
// (WeightType::kFp8) keep values and scales as they are.
//
// Thread contract: plain functions on the caller's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/config/model_config.h"
#include "core/io/checkpoint.h"

namespace moesaic {

struct Fp8Tensor {
  const TensorInfo* values = nullptr;
  const TensorInfo* scales = nullptr;
  BlockScales blocks;
};

// nullopt when the tensor is not there or of another type. Throws Error: kCorrupt for a shape other
// than `shape` and for scales of another shape or type, kNotFound for scales that are missing,
// kUnsupported when the plan says nothing of blocks.
std::optional<Fp8Tensor> FindFp8(const Checkpoint& checkpoint, const PlannedTensor& tensor,
                                 std::span<const int64_t> shape);

// Whether config.json says that this tensor, of `cols` inputs, can stay fp8: it is fp8, and a group
// of kQuantGroup inputs has one scale. Not of embeddings, output matrices and routers, which
// checkpoints have in bf16.
bool StaysFp8(const ModelConfig& config, TensorSlot slot, int64_t layer, int64_t cols);
// The same of the matrices of all experts.
bool HasFp8Experts(const ModelConfig& config);
// Of a row of k inputs the scales [ceil(k / kQuantGroup)] of its groups. `scales` are all of the
// tensor's, of `scale_type`; a group has one (StaysFp8).
void Fp8GroupScales(const std::byte* scales, DType scale_type, const BlockScales& blocks,
                    int64_t row, int64_t k, float* out);

float Fp8E4M3ToF32(uint8_t value);  // 0x7f and 0xff are NaN, there is no infinity

// values: rows [row_begin, row_begin + rows) of k; scales: all of the tensor's, of `scale_type`
// (f32, f16 or bf16). out [rows, k] may overlap the values when it ends where they end.
void DequantiseFp8(const std::byte* values, int64_t row_begin, int64_t rows, int64_t k,
                   const std::byte* scales, DType scale_type, const BlockScales& blocks,
                   float* out);

}  // namespace moesaic
