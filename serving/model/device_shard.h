// What DeviceDense has of one device. Internal to device_*.cpp.
#pragma once

#include <array>
#include <memory>

#include "core/device/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/rows.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_dense.h"

namespace moesaic {

// "First": of the first device only, which has no part in it otherwise.
struct DeviceDense::Shard {
  template <typename T>
  const T* Table(uint64_t offset) const {
    return reinterpret_cast<const T*>(tables.data() + offset);
  }

  RowRange kv_heads;
  int64_t block_bytes = 0;  // of its KV heads, in one layer
  ModelWeights weights;     // addresses in `memory`

  DeviceBuffer memory;
  DeviceBuffer kv;         // [layers of a block, num_kv_blocks, block_bytes]
  DeviceBuffer cos;        // [max_context_tokens, rotary_dim / 2] f32
  DeviceBuffer sin;        // likewise
  DeviceBuffer hidden;     // [rows, hidden] f32, the residual stream
  DeviceBuffer normed;     // [rows, hidden] f32, for routers; first
  DeviceBuffer x;          // [rows, ActivationStride(hidden)] bf16
  DeviceBuffer qkv;        // [rows, (its heads + 2 its KV heads) * head_dim] f32
  DeviceBuffer whole_qkv;  // [rows, (heads + 2 KV heads) * head_dim] f32, QkNorm::kProjection of
                           // several devices only
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
  DeviceBuffer pieces;     // of all devices, one behind the other; or its own; of several devices

  DeviceBuffer gemm_memory;  // a library's, with limits.gemm_library

  std::unique_ptr<Event> normed_x;   // that x is what a layer's experts multiply
  std::unique_ptr<Stream> stream;    // behind the buffers: it goes first, and waits
  std::unique_ptr<cuda::Gemm> gemm;  // of the stream; null: all products are our own kernels'
};

struct DeviceDense::Columns {
  int64_t of(size_t device) const { return bounds[device + 1] - bounds[device]; }
  // Bytes of the device's piece of `rows` rows.
  uint64_t PieceBytes(size_t device, int64_t rows) const {
    return RowBytes(of(device)) * static_cast<uint64_t>(rows);
  }
  uint64_t RowBytes(int64_t columns) const {
    return bf16 ? static_cast<uint64_t>(cuda::ActivationStride(columns)) * sizeof(uint16_t)
                : Floats(columns);
  }

  std::array<int64_t, cuda::JoinColumnsArgs::kMostPieces + 1> bounds = {};
  int64_t all = 0;    // columns
  bool bf16 = false;  // activation rows, else f32
};

struct DeviceDense::QkvRows {
  float* first = nullptr;  // of the first row of the module
  int64_t heads = 0;       // of a row
  int64_t kv_heads = 0;
  int64_t stride = 0;
  int64_t first_kv_head = 0;  // of the device's
};

template <typename Args>
void DeviceDense::Queue(Shard& shard,
                        LaunchResult (*run)(const Args& args, cuda::StreamHandle stream),
                        const std::type_identity_t<Args>& args) {
  shard.stream->Launch(
      [run, args](cuda::StreamHandle stream) -> LaunchResult { return run(args, stream); });
}

inline const LayerWeights& DeviceDense::Weights(const Shard& shard, int64_t layer) const {
  return shard.weights.layers[static_cast<size_t>(layer)];
}

}  // namespace moesaic
