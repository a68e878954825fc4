// What the dense part of a layer (dense_part.h) and its experts (expert_runner.h) hand to each
// other. Plain data; what it points to is valid until the next layer's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "core/device/device_buffer.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/moe.h"

namespace moesaic {

class DeviceOperator;
class StepExperts;

// Experts of each row of a layer.
struct RowExperts {
  const int32_t* ids = nullptr;    // [tokens, top_k]
  const float* weights = nullptr;  // [tokens, top_k]
  // [tokens, top_k] 1: it is added one layer later. Null: none.
  const uint8_t* deferred = nullptr;
};

// The rows that experts multiply.
struct ExpertInputs {
  int64_t tokens = 0;
  // On the host: f32, stride floats apart, wanted where the host computes, or a device to which
  // they are sent.
  const float* x = nullptr;
  int64_t x_stride = 0;
  // Where x is null: waits for the device, brings the rows and gives what x would be. Throws the
  // device's Error. Empty: nobody can want them.
  std::function<const float*()> bring_x = nullptr;
  // On the devices that have the residual stream, the first one first: [..,
  // ActivationStride(hidden)] bf16. None: the host has it.
  std::span<const DeviceSpan> there = {};
  // Of a step that runs on the device by itself: it computes all but these experts, which it has
  // missed and is told of when they are computed. Null: it does not.
  StepExperts* step = nullptr;
  std::span<const int32_t> missed = {};
};

// What the experts have made of the rows: the residual stream is to get, for each row, the sum over
// slots, in order, of weight times output. With neither of the two places: nothing.
struct ExpertOutputs {
  const float* weights = nullptr;  // [tokens, top_k]
  // On the host: the output of pair (row, slot) is row * top_k + slot, of those in the mask.
  const float* slot_out = nullptr;  // [tokens * top_k, hidden]
  SlotMask mask = {};
  // The rows as experts have multiplied them, and weights of which type.
  const std::byte* activations = nullptr;
  int64_t activations_stride_bytes = 0;
  WeightType type = WeightType::kBf16;
  // On the device that has the residual stream: the output of a pair is row pair_rows[pair] of
  // device->out(), after what it has queued; the last `others` of these rows are sent from
  // device->host_out().
  const DeviceOperator* device = nullptr;
  int64_t others = 0;
  std::span<const int32_t> pair_rows = {};
};

}  // namespace moesaic
