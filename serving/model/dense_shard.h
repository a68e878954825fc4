// What DenseShards has of one device. Internal to dense_shards*.cpp.
#pragma once

#include <array>
#include <memory>

#include "core/device/device.h"
#include "kernels/cuda/rows.h"
#include "serving/model/dense_shards.h"

namespace moesaic {

// "First": of the first device only, which has no part in it otherwise.
struct DenseShards::Shard {
  template <typename T>
  const T* Table(uint64_t offset) const {
    return reinterpret_cast<const T*>(tables.data() + offset);
  }

  RowRange kv_heads;
  int64_t block_bytes = 0;  // of its KV heads, in one layer
  ModelWeights weights;     // addresses in `memory`

  DeviceBuffer memory;
  DeviceBuffer kv;         // [layers, num_kv_blocks, block_bytes]
  DeviceBuffer cos;        // [max_context_tokens, rotary_dim / 2] f32
  DeviceBuffer sin;        // likewise
  DeviceBuffer hidden;     // [rows, hidden] f32, the residual stream
  DeviceBuffer normed;     // [rows, hidden] f32, for routers; first
  DeviceBuffer x;          // [rows, ActivationStride(hidden)] bf16
  DeviceBuffer qkv;        // [rows, (its heads + 2 its KV heads) * head_dim] f32
  DeviceBuffer whole_qkv;  // [rows, (heads + 2 KV heads) * head_dim] f32, QkNorm::kProjection only
  DeviceBuffer attention;  // [rows, ActivationStride(heads * head_dim)] bf16
  DeviceBuffer gate;       // [rows, its columns of the widest MLP] f32
  DeviceBuffer up;         // likewise
  DeviceBuffer h;          // [rows, ActivationStride(widest MLP)] bf16
  DeviceBuffer out;        // [rows, hidden] or [logit rows, vocab] f32; first
  DeviceBuffer scores;     // [rows, experts] f32; first
  DeviceBuffer routing;    // [rows, top_k] int32, then [rows, top_k] f32; first
  DeviceBuffer sum;        // likewise: where outputs are, and their weights; first
  DeviceBuffer chosen;     // [logit rows] int32, rows and then tokens
  DeviceBuffer tables;     // of the step
  DeviceBuffer partials;   // of attention over long contexts
  DeviceBuffer pieces;     // of all devices, one behind the other; or its own

  std::unique_ptr<Event> normed_x;  // that x is what a layer's experts multiply
  std::unique_ptr<Stream> stream;   // last: it goes first, and waits
};

struct DenseShards::Columns {
  int64_t of(size_t device) const { return bounds[device + 1] - bounds[device]; }
  // Bytes of the device's piece of `rows` rows.
  uint64_t PieceBytes(size_t device, int64_t rows) const {
    return bf16
               ? static_cast<uint64_t>(rows * cuda::ActivationStride(of(device))) * sizeof(uint16_t)
               : static_cast<uint64_t>(rows * of(device)) * sizeof(float);
  }

  std::array<int64_t, cuda::JoinColumnsArgs::kMostPieces + 1> bounds = {};
  bool bf16 = false;  // activation rows, else f32
};

template <typename Args>
void DenseShards::Queue(Shard& shard,
                        LaunchResult (*run)(const Args& args, cuda::StreamHandle stream),
                        const std::type_identity_t<Args>& args) {
  shard.stream->Launch(
      [run, args](cuda::StreamHandle stream) -> LaunchResult { return run(args, stream); });
}

}  // namespace moesaic
