// What the dense part on devices (device_dense.h) measures and names.
//
// Functions of their arguments.
#pragma once

#include <cstdint>

#include "core/config/model_config.h"
#include "core/device/device_buffer.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

// Decode steps of up to so many sequences spread a long context over the whole device.
constexpr int64_t kSplitSequences = 16;

inline uint64_t Floats(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }
inline float* FloatsOf(const DeviceBuffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}
inline int32_t* IntsOf(const DeviceBuffer& buffer) {
  return reinterpret_cast<int32_t*>(buffer.data());
}
inline uint16_t* Bf16Of(const DeviceBuffer& buffer) {
  return reinterpret_cast<uint16_t*>(buffer.data());
}

// Throws Error(kUnsupported) for f32.
cuda::Weights GpuWeights(WeightType type);

// Blocks that the sequences of a step name; they may share some.
inline int64_t MostBlocks(const ModelLimits& limits) {
  return limits.max_sequences * (limits.max_context_tokens / cuda::kBlockTokens + 1);
}

// What attention takes to spread the contexts of `heads` heads over a device.
inline uint64_t AttentionPartialsBytes(int64_t heads, int64_t head_dim, const ModelLimits& limits) {
  const int64_t chunks = limits.max_context_tokens / cuda::kChunkTokens + 2;
  return Floats(kSplitSequences * heads * chunks * AttentionPartialFloats(head_dim));
}

}  // namespace moesaic
