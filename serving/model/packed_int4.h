// Weights of 4 bits as compressed-tensors packs them (format "pack-quantized"; Kimi-K2-Thinking and
// K2.5): NAME_packed [n, k / 8] of int32, number j of eight in bits 4 j to 4 j + 3 and 8 too large,
// and NAME_scale [n, k / group] of bf16, f16 or f32. Where the engine wants numbers a weight is
// their product, rounded once to f32. Weights in memory (WeightType::kW4A16) keep numbers and
// scales.
//
// Thread contract: plain functions on the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/tensor.h"
#include "core/config/model_config.h"

namespace moesaic {

inline constexpr char kPackedSuffix[] = "_packed";
inline constexpr char kPackedScaleSuffix[] = "_scale";

// Inputs that share a scale in rows of k.
constexpr int64_t PackedGroup(const PackedInt4& packed, int64_t k) {
  return packed.group > 0 ? packed.group : k;
}

// Whether config.json says that the matrices of all experts are packed and can stay so: 32 inputs
// in a row (kW4A16Group) have one scale.
bool HasW4A16Experts(const ModelConfig& config);

// A row: codes [k / 2] bytes, two numbers in a byte, the lower half first; scales [k / group] of
// `scale_type`; out [k]. k is a multiple of `group` and even.
void DequantisePackedInt4(const std::byte* codes, const std::byte* scales, DType scale_type,
                          int64_t group, int64_t k, float* out);

}  // namespace moesaic
