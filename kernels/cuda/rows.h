// CUDA kernels on rows: norms, rotary positions, embeddings, the activation of an expert, the
// greedy token, rows from pieces. Every pointer is the device's; a call queues a kernel and
// returns.
//
// bf16 outputs are activation rows (packed_weights.h): ActivationStride(n) elements apart, their
// padding zeroed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/launch_result.h"
#include "kernels/cuda/packed_weights.h"
#include "kernels/cuda/stream_handle.h"

namespace moesaic::cuda {

// out = x / sqrt(mean(x^2) + eps) * weight, of each row (the CPU's rms_norm).
//
// A row is a head of a token for the norms of queries and keys, which are done in place: row r is
// head r % heads of token r / heads.
struct RmsNormArgs {
  const float* x = nullptr;
  int64_t rows = 0;
  int64_t n = 0;
  int64_t heads = 1;
  int64_t token_stride = 0;  // floats between tokens; heads are n floats apart
  // [rows / heads] token of x of each; null: 0, 1, 2, ... With it `out` is not wanted.
  const int32_t* x_tokens = nullptr;
  const float* weight = nullptr;  // [n]
  float eps = 0;
  float* out = nullptr;          // as x, which it may be; null: not wanted
  uint16_t* out_bf16 = nullptr;  // [rows, ActivationStride(n)]; null: not wanted
};
LaunchResult RmsNorm(const RmsNormArgs& args, StreamHandle stream);

// Half-rotation (the CPU's rope) in place, of the first rotary_dim values of `heads` heads of each
// token.
struct RopeArgs {
  float* x = nullptr;  // head h of token t: x + t * token_stride + h * head_dim
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  int64_t token_stride = 0;
  const int32_t* positions = nullptr;  // [tokens]
  const float* cos = nullptr;          // [positions, rotary_dim / 2]
  const float* sin = nullptr;
};
LaunchResult Rope(const RopeArgs& args, StreamHandle stream);

// out[t] = row ids[t] of a packed matrix [n, k] (the CPU's unpack_row). An id outside [0, n) gives
// zeros.
struct EmbeddingArgs {
  const std::byte* matrix = nullptr;
  Weights type = Weights::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  const int32_t* ids = nullptr;  // [tokens]
  int64_t tokens = 0;
  float* out = nullptr;  // [tokens, k]
};
LaunchResult Embedding(const EmbeddingArgs& args, StreamHandle stream);

// out = silu(gate) * up, rounded to bf16; clamped: (u + 1) * g * sigmoid(alpha * g) with
// g = min(gate, limit) and u = up within +-limit, where a NaN stays one.
struct SwiGluArgs {
  const float* gate = nullptr;  // [rows, n]
  const float* up = nullptr;    // [rows, n]
  int64_t rows = 0;
  int64_t n = 0;
  bool clamped = false;
  float alpha = 0;
  float limit = 0;
  uint16_t* out = nullptr;  // [rows, ActivationStride(n)]
};
LaunchResult SwiGlu(const SwiGluArgs& args, StreamHandle stream);

// y += x / (1 + exp(-gate)) of each row, with one gate a row: a shared expert into the residual
// stream.
struct AddGatedArgs {
  const float* x = nullptr;     // [rows, n]
  const float* gate = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t n = 0;
  float* y = nullptr;  // [rows, n]
};
LaunchResult AddGated(const AddGatedArgs& args, StreamHandle stream);

// The index of the largest of each row; the lowest of equals. NaN is never the largest; a row of
// nothing else gives 0.
struct ArgMaxArgs {
  const float* x = nullptr;  // [rows, n]
  int64_t rows = 0;
  int64_t n = 0;
  bool finite_only = false;  // a row with a NaN or an infinity gives -1
  int32_t* out = nullptr;    // [rows]
};
LaunchResult ArgMax(const ArgMaxArgs& args, StreamHandle stream);

// Rows whose columns several devices have computed, put side by side: piece i holds the columns
// [bounds[i], bounds[i + 1]) of all rows, one piece behind the other, in row-major order.
//
// bf16 pieces are activation rows, ActivationStride(columns) elements apart, and so is the output,
// whose padding is zeroed.
struct JoinColumnsArgs {
  static constexpr int kMostPieces = 16;
  const void* pieces = nullptr;  // f32, or with `bf16` uint16_t
  int32_t num_pieces = 0;
  int32_t bounds[kMostPieces + 1] = {};  // ascending from 0, the last is the columns of a row
  int64_t rows = 0;
  bool bf16 = false;
  bool accumulate = false;  // out += instead of out =; f32 only
  int64_t out_stride = 0;   // elements between rows of out; with bf16 at least the padded row
  void* out = nullptr;      // [rows, out_stride], of which the first columns are written
};
LaunchResult JoinColumns(const JoinColumnsArgs& args, StreamHandle stream);

// A copy from memory of the host that kernels reach (CudaDeviceOptions::fetch), aligned to 16
// bytes, of a multiple of 4. For little: one block does it, which is no match for a copy engine
// with more.
constexpr uint64_t kMostFetchedBytes = 1 << 20;
LaunchResult Fetch(void* to, const void* from, uint64_t bytes, StreamHandle stream);

// Loads all of these kernels (LoadKernels, kernels.h).
LaunchResult LoadRowKernels();

}  // namespace moesaic::cuda
