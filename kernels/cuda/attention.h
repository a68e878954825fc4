// Attention on a GPU over the paged bf16 KV cache: prompts and decode steps alike, grouped queries,
// head sizes from 2 to 256 (even), sliding windows. Every pointer is the device's; a call queues
// kernels and returns.
//
// The cache has the CPU's layout, byte for byte (KvLayout of kernels/cpu/kernels.h, kBf16): blocks
// of 16 tokens, each a key panel [d/2][16][2] and values [8][d rounded up to 16][2] per KV head. So
// a block moves between host and device as it is. Its words are operand registers of the tensor
// cores (docs/cuda.md).
//
// Numerics. Queries and probabilities are rounded to bf16 before a product, sums are f32. Scores
// are reduced in chunks of kChunkTokens positions, cut at absolute positions and folded in
// ascending order: a query's bits depend neither on its batch mates, nor on how a prompt was cut,
// nor on `split`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/launch_result.h"
#include "kernels/cuda/stream_handle.h"

namespace moesaic::cuda {

constexpr int64_t kBlockTokens = 16;
constexpr int64_t kChunkTokens = 64;
constexpr int64_t kMaxHeadDim = 256;

struct KvCache {
  std::byte* data = nullptr;       // of one layer: block b at data + b * block_stride_bytes
  int64_t block_stride_bytes = 0;  // at least kv_heads * KvHeadBytes(head_dim), a multiple of 16
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};
constexpr int64_t KvKeyBytes(int64_t head_dim) { return (head_dim + 1) / 2 * 64; }
constexpr int64_t KvHeadBytes(int64_t head_dim) {
  return KvKeyBytes(head_dim) + kBlockTokens * ((head_dim + 15) / 16 * 16) * 2;
}

// Writes keys and values of new tokens (the CPU's store_kv).
struct StoreKvArgs {
  KvCache cache;
  const float* keys = nullptr;    // KV head h of token t: keys + t * token_stride + h * head_dim
  const float* values = nullptr;  // likewise
  int64_t token_stride = 0;       // in floats
  int64_t tokens = 0;
  const int32_t* slots = nullptr;  // [tokens] block * 16 + place in the block; -1: not written
};
LaunchResult StoreKv(const StoreKvArgs& args, StreamHandle stream);

// Consecutive tokens of one request.
struct AttentionSequence {
  int32_t first_row = 0;  // of q and out
  int32_t rows = 0;
  int32_t context_end = 0;  // row r sees the positions before context_end + r
  int32_t first_block = 0;  // in `blocks`
};

struct AttentionArgs {
  KvCache cache;
  const float* q = nullptr;  // head h of row r: q + r * q_row_stride + h * head_dim
  int64_t q_row_stride = 0;  // in floats
  int64_t heads = 0;         // a multiple of kv_heads
  float scale = 1.0f;
  int64_t window = 0;                            // positions that a row sees at most; 0: all
  const AttentionSequence* sequences = nullptr;  // [num_sequences]
  int64_t num_sequences = 0;
  int64_t max_rows = 0;     // of a sequence
  int64_t max_context = 0;  // positions that any row sees the end of: max of context_end + rows - 1
  const int32_t* blocks = nullptr;  // block i of a sequence: blocks[first_block + i]
  uint16_t* out = nullptr;  // bf16 [rows, ActivationStride(heads * head_dim)], padding zeroed
  int64_t out_stride = 0;   // in elements
  // Decode steps have few queries and long contexts: the chunks of a context are computed by
  // different blocks of threads and folded by a second kernel. Needs `workspace`.
  bool split = false;
  float* workspace = nullptr;  // AttentionWorkspaceFloats
};
int64_t AttentionWorkspaceFloats(const AttentionArgs& args);
LaunchResult Attention(const AttentionArgs& args, StreamHandle stream);

// Loads all of these kernels (LoadKernels, kernels.h).
LaunchResult LoadAttentionKernels();

}  // namespace moesaic::cuda
