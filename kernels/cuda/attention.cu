#include "kernels/cuda/attention.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kTileQueries = 16;
constexpr int kTileTokens = 32;  // two blocks of the cache
constexpr float kLog2E = 1.44269504088896341f;

// A query is one head of one row; those of a row come together: query i is head i % group of row
// i / group. The partial result of one is [padded] sums, then the maximum, then the sum of weights.
__host__ __device__ constexpr int64_t PartialFloats(int64_t head_dim) {
  return (head_dim + 15) / 16 * 16 + 2;
}

__host__ __device__ inline int64_t Chunks(int64_t max_context) {
  return (max_context + kChunkTokens - 1) / kChunkTokens;
}

__device__ float* PartialOf(const AttentionArgs& args, int64_t sequence, int64_t kv_head,
                            int64_t chunk, int64_t query) {
  const int64_t queries = args.max_rows * (args.heads / args.cache.kv_heads);
  const int64_t index =
      ((sequence * args.cache.kv_heads + kv_head) * Chunks(args.max_context) + chunk) * queries +
      query;
  return args.workspace + index * PartialFloats(args.cache.head_dim);
}

// Positions [begin, end) that a query sees.
struct Span {
  int begin, end;
};
__device__ Span SeenBy(const AttentionArgs& args, const AttentionSequence& sequence, int row) {
  const int end = sequence.context_end + row;
  const int begin = args.window > 0 && end > args.window ? end - static_cast<int>(args.window) : 0;
  return {begin, end};
}

// A warp sums at most so many dimensions of values: registers would not hold more. With larger
// heads a block has several warps, each of which computes all scores, and sums for dimensions of
// its own.
constexpr int kMostSums = 128;
template <int kDim>
constexpr int kSums = kDim < kMostSums ? kDim : kMostSums;
template <int kDim>
constexpr bool kOneWarp = kDim <= kMostSums;
template <int kDim>
constexpr int kAttentionThreads = kWarp* kDim / kSums<kDim>;

// Running softmax of the two queries (g and g + 8) that a lane has a part of: 8 consecutive head
// dimensions of every 32.
template <int kDim>
struct Softmax {
  float sums[kSums<kDim> / 32][4][4];
  float max[2];
  float weight[2];

  __device__ void Reset() {
#pragma unroll
    for (int d = 0; d < kSums<kDim> / 32; ++d) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[d][w][i] = 0;
      }
    }
    max[0] = max[1] = kMinusInfinity;
    weight[0] = weight[1] = 0;
  }
  __device__ void Scale(int half, float factor) {
#pragma unroll
    for (int d = 0; d < kSums<kDim> / 32; ++d) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        sums[d][w][half * 2] *= factor;
        sums[d][w][half * 2 + 1] *= factor;
      }
    }
    weight[half] *= factor;
  }
};

// What exponents are taken relative to; a maximum of -inf is no position at all.
__device__ float Shift(float max) { return max == kMinusInfinity ? 0.0f : max; }

// One chunk, or what a query tile sees of it, tile of 32 positions by tile. Scores are times log2
// e.
// kFits: a head has kDim dimensions, not fewer.
template <int kDim, bool kFits, int kMostBatch>
struct ChunkReader {
  const AttentionArgs& args;
  const int32_t* blocks;
  int64_t kv_head;
  int begin, end;  // positions that any query of the tile sees
  int first_dim;   // that the warp sums
  const uint32_t (&q)[kDim / 16][4];
  Span seen[2];  // of the queries of this lane

  __device__ const std::byte* Block(int index) const {
    return args.cache.data + blocks[index] * args.cache.block_stride_bytes +
           kv_head * KvHeadBytes(args.cache.head_dim);
  }
  __device__ bool HasTokens(int block) const {
    return block * kBlockTokens < end && (block + 1) * kBlockTokens > begin;
  }

  // Of 16 dimensions of the keys of `block`: the lane's lines, zero where there are none.
  __device__ __forceinline__ void LoadKeys(const std::byte* keys, int step, int quarter, int t,
                                           Quarter (&lines)[2]) const {
    const int there = (static_cast<int>(args.cache.head_dim) + 1) / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int line = step * 8 + 2 * t + i;
      lines[i] = {};
      if (keys != nullptr && (kFits || line < there)) {
        lines[i] = LoadQuarter(keys + line * kLineBytes, quarter);
      }
    }
  }
  // Of 32 dimensions of the values of two pairs of tokens.
  __device__ __forceinline__ void LoadValues(const std::byte* values, int pair, int dim,
                                             Quarter (&pairs)[2]) const {
    const int padded = (static_cast<int>(args.cache.head_dim) + 15) / 16 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pairs[i] = {};
      if (values != nullptr && (kFits || dim < padded)) {
        pairs[i] = LoadQuarter(values + ((pair + i) * padded + dim) * 4, 0);
      }
    }
  }

  __device__ void Add(int first, Softmax<kDim>& softmax) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int g = lane / 4;
    const int t = lane % 4;
    const int d = static_cast<int>(args.cache.head_dim);

    // Scores. Column c of tile w is token 4 c + w, so that this lane's are tokens 8t to 8t + 7:
    // 8t + w of columns 2t, 8t + 4 + w of columns 2t + 1. Keys are on their way, a batch at a time,
    // before the first product waits for them.
    float scores[4][4] = {};
    const int key_block = first / static_cast<int>(kBlockTokens) + g / 4;
    const std::byte* keys = HasTokens(key_block) ? Block(key_block) : nullptr;
    constexpr int kSteps = kDim / 16 < kMostBatch ? kDim / 16 : kMostBatch;
#pragma unroll
    for (int batch = 0; batch < kDim / 16; batch += kSteps) {
      if (!kFits && batch * 16 >= d) break;
      Quarter lines[kSteps][2];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) LoadKeys(keys, batch + i, g % 4, t, lines[i]);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          Mma(scores[w], q[batch + i], lines[i][0].output[w], lines[i][1].output[w]);
        }
      }
    }

    const float scale = args.scale * kLog2E;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = softmax.max[half];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = first + 8 * t + 4 * i + w;
          float& score = scores[w][half * 2 + i];
          // By selection: a key that nobody has written may be anything.
          score =
              token >= seen[half].begin && token < seen[half].end ? score * scale : kMinusInfinity;
          max = fmaxf(max, score);
        }
      }
      max = fmaxf(max, ShuffleXor(max, 1));
      max = fmaxf(max, ShuffleXor(max, 2));
      const float shift = Shift(max);
      softmax.Scale(half, exp2f(softmax.max[half] - shift));
      softmax.max[half] = max;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[w][half * 2 + i];
          score = exp2f(score - shift);
          softmax.weight[half] += score;
        }
      }
    }

    // Values. The lane's own weights are its part of the operand: of step j the tokens
    // 8t + 4j to 8t + 4j + 3.
    const int value_block = first / static_cast<int>(kBlockTokens) + t / 2;
    const std::byte* values = HasTokens(value_block) ? Block(value_block) + KvKeyBytes(d) : nullptr;
    constexpr int kDims = kSums<kDim> / 32;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t p[4] = {
          PackBf16(scores[0][j], scores[1][j]), PackBf16(scores[0][2 + j], scores[1][2 + j]),
          PackBf16(scores[2][j], scores[3][j]), PackBf16(scores[2][2 + j], scores[3][2 + j])};
      const int token = first + 8 * t + 4 * j;
      const uint32_t low_mask = Written(token);
      const uint32_t high_mask = Written(token + 2);
      const int pair = 4 * (t % 2) + 2 * j;                                     // of the block
      constexpr int kValues = kDims < kMostBatch / 2 ? kDims : kMostBatch / 2;  // of 32 dimensions
#pragma unroll
      for (int batch = 0; batch < kDims; batch += kValues) {
        Quarter pairs[kValues][2];
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          LoadValues(values, pair, first_dim + (batch + i) * 32 + 4 * g, pairs[i]);
        }
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            Mma(softmax.sums[batch + i][w], p, pairs[i][0].output[w] & low_mask,
                pairs[i][1].output[w] & high_mask);
          }
        }
      }
    }
  }

  // The halves of a register of values that may be read: tokens `token` and `token` + 1. What no
  // query sees may never have been written, and 0 times anything would not be 0.
  __device__ uint32_t Written(int token) const {
    const uint32_t first = token >= begin && token < end ? 0x0000ffffu : 0u;
    const uint32_t second = token + 1 >= begin && token + 1 < end ? 0xffff0000u : 0u;
    return first | second;
  }
};

// total += chunk, of both queries of the lane.
template <int kDim>
__device__ void Fold(const Softmax<kDim>& chunk, Softmax<kDim>& total) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float max = fmaxf(total.max[half], chunk.max[half]);
    const float old_factor = exp2f(total.max[half] - Shift(max));
    const float new_factor = exp2f(chunk.max[half] - Shift(max));
    total.max[half] = max;
    total.weight[half] = fmaf(chunk.weight[half], new_factor, total.weight[half] * old_factor);
#pragma unroll
    for (int d = 0; d < kSums<kDim> / 32; ++d) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          total.sums[d][w][i] =
              fmaf(chunk.sums[d][w][i], new_factor, total.sums[d][w][i] * old_factor);
        }
      }
    }
  }
}

__device__ float Quotient(float sum, float weight) { return weight > 0 ? sum / weight : 0.0f; }

// 16 queries of a sequence that share a KV head: all chunks of their contexts, or the one of
// blockIdx.z. A block has so many such tiles side by side, which read the same keys and values at
// about the same time; its warps need nothing of each other.
template <int kDim, bool kSplit>
constexpr int kTiles = kSplit || !kOneWarp<kDim> ? 1 : 4;
// Steps whose keys are on their way at a time: what registers hold.
template <int kDim, bool kSplit>
constexpr int kBatch = !kOneWarp<kDim> ? 2 : (kSplit ? 8 : 4);

template <int kDim, bool kSplit, bool kFits>
__global__ void __launch_bounds__(kAttentionThreads<kDim>* kTiles<kDim, kSplit>)
    AttentionKernel(AttentionArgs args) {
  const int64_t chunks = kSplit ? Chunks(args.max_context) : 1;
  const int64_t sequence_index = blockIdx.z / chunks;
  const AttentionSequence sequence = args.sequences[sequence_index];
  const int64_t kv_head = blockIdx.y;
  const auto group = static_cast<int>(args.heads / args.cache.kv_heads);
  const int queries = sequence.rows * group;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kTilesHere = kTiles<kDim, kSplit>;
  const int tile = static_cast<int>(blockIdx.x) * kTilesHere + warp % kTilesHere;
  const int first_query = tile * kTileQueries;
  if (first_query >= queries) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_dim = warp / kTilesHere * kSums<kDim>;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto d = static_cast<int>(args.cache.head_dim);

  // Queries g and g + 8 of the tile; those past the end see nothing.
  const int last_query = min(first_query + kTileQueries, queries) - 1;
  Span seen[2] = {};
  uint32_t q[kDim / 16][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + g + half * 8;
    if (query > last_query) continue;
    const int row = query / group;
    seen[half] = SeenBy(args, sequence, row);
    const float* from = args.q + (sequence.first_row + row) * args.q_row_stride +
                        (kv_head * group + query % group) * d;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int dim = step * 16 + 4 * t + i;
        values[i] = kFits || dim < d ? from[dim] : 0.0f;
      }
      q[step][half] = PackBf16(values[0], values[1]);
      q[step][2 + half] = PackBf16(values[2], values[3]);
    }
  }

  Converge();
  const int begin = SeenBy(args, sequence, first_query / group).begin;
  const int end = SeenBy(args, sequence, last_query / group).end;
  const ChunkReader<kDim, kFits, kBatch<kDim, kSplit>> reader = {
      args,    args.blocks + sequence.first_block,
      kv_head, begin,
      end,     first_dim,
      q,       {seen[0], seen[1]}};
  constexpr auto kChunk = static_cast<int>(kChunkTokens);
  int chunk = begin / kChunk;
  int chunk_end = (end + kChunk - 1) / kChunk;
  if (kSplit) {
    const auto mine = static_cast<int>(blockIdx.z % chunks);
    if (mine < chunk || mine >= chunk_end) return;  // the fold knows which there are
    chunk = mine;
    chunk_end = mine + 1;
  }

  Softmax<kDim> total;
  total.Reset();
  for (; chunk < chunk_end; ++chunk) {
    Softmax<kDim> part;
    part.Reset();
    const int to = min((chunk + 1) * kChunk, end);
    for (int first = max(chunk * kChunk, begin / kTileTokens * kTileTokens); first < to;
         first += kTileTokens) {
      reader.Add(first, part);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      part.weight[half] += ShuffleXor(part.weight[half], 1);
      part.weight[half] += ShuffleXor(part.weight[half], 2);
    }
    if (kSplit) {
      total = part;
    } else {
      Fold(part, total);
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + g + half * 8;
    if (query > last_query) continue;
    const int padded = (d + 15) / 16 * 16;
    float* partial = nullptr;
    uint16_t* out = nullptr;
    if (kSplit) {
      partial = PartialOf(args, sequence_index, kv_head, blockIdx.z % chunks, query);
      if (t == 0 && first_dim == 0) {
        partial[padded] = total.max[half];
        partial[padded + 1] = total.weight[half];
      }
    } else {
      out = args.out + (sequence.first_row + query / group) * args.out_stride +
            (kv_head * group + query % group) * d;
    }
#pragma unroll
    for (int dims = 0; dims < kSums<kDim> / 32; ++dims) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int dim = first_dim + dims * 32 + 8 * t + 4 * i + w;
          const float sum = total.sums[dims][w][half * 2 + i];
          if (dim >= d) continue;
          if (kSplit) {
            partial[dim] = sum;
          } else {
            out[dim] = RoundBf16(Quotient(sum, total.weight[half]));
          }
        }
      }
    }
  }
}

// A block per query: folds its chunks in the order and with the operations of AttentionKernel. The
// factors of a batch of chunks are computed first, a thread each; a maximum is the same whatever
// the order that it is taken in.
constexpr int kFoldThreads = 128;
constexpr int kFoldBatch = 8;

__global__ void __launch_bounds__(kFoldThreads) FoldKernel(AttentionArgs args) {
  __shared__ float maxima[kFoldThreads];
  __shared__ float weights[kFoldThreads];
  __shared__ float old_factors[kFoldThreads];
  __shared__ float new_factors[kFoldThreads];
  const int64_t sequence_index = blockIdx.z;
  const AttentionSequence sequence = args.sequences[sequence_index];
  const int64_t kv_head = blockIdx.y;
  const auto group = static_cast<int>(args.heads / args.cache.kv_heads);
  const auto query = static_cast<int>(blockIdx.x);
  if (query >= sequence.rows * group) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto d = static_cast<int>(args.cache.head_dim);
  const int padded = (d + 15) / 16 * 16;
  // Of its tile: a chunk that only a tile mate sees changes nothing.
  const Span seen = SeenBy(args, sequence, query / group);
  constexpr auto kChunk = static_cast<int>(kChunkTokens);
  const int chunk_end = (seen.end + kChunk - 1) / kChunk;
  const int64_t stride = args.max_rows * group * PartialFloats(args.cache.head_dim);
  const float* const partials = PartialOf(args, sequence_index, kv_head, 0, query);
  constexpr int kDims = kMaxHeadDim / kFoldThreads;  // of a thread
  float sums[kDims] = {};
  float weight = 0;
  float max_before = kMinusInfinity;
  for (int first = seen.begin / kChunk; first < chunk_end; first += kFoldThreads) {
    const int count = min(kFoldThreads, chunk_end - first);
    __syncthreads();
    if (thread < count) {
      maxima[thread] = partials[(first + thread) * stride + padded];
      weights[thread] = partials[(first + thread) * stride + padded + 1];
    }
    __syncthreads();
    if (thread < count) {
      float old_max = max_before;
      for (int i = 0; i < thread; ++i) old_max = fmaxf(old_max, maxima[i]);
      const float max = fmaxf(old_max, maxima[thread]);
      old_factors[thread] = exp2f(old_max - Shift(max));
      new_factors[thread] = exp2f(maxima[thread] - Shift(max));
    }
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      weight = fmaf(weights[i], new_factors[i], weight * old_factors[i]);
      max_before = fmaxf(max_before, maxima[i]);
    }
#pragma unroll
    for (int j = 0; j < kDims; ++j) {
      const int dim = thread + j * kFoldThreads;
      if (dim >= d) break;
      for (int i = 0; i < count; i += kFoldBatch) {
        float batch[kFoldBatch];
#pragma unroll
        for (int b = 0; b < kFoldBatch; ++b) {
          batch[b] = partials[(first + min(i + b, count - 1)) * stride + dim];
        }
#pragma unroll
        for (int b = 0; b < kFoldBatch; ++b) {
          if (i + b >= count) break;
          sums[j] = fmaf(batch[b], new_factors[i + b], sums[j] * old_factors[i + b]);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kDims; ++j) {
    const int dim = thread + j * kFoldThreads;
    if (dim >= d) break;
    args.out[(sequence.first_row + query / group) * args.out_stride +
             (kv_head * group + query % group) * d + dim] = RoundBf16(Quotient(sums[j], weight));
  }
}

// What is behind the last head of a row of out.
__global__ void __launch_bounds__(kFoldThreads) ZeroPaddingKernel(AttentionArgs args) {
  const AttentionSequence sequence = args.sequences[blockIdx.x];
  const int64_t width = args.heads * args.cache.head_dim;
  for (int row = static_cast<int>(threadIdx.x); row < sequence.rows; row += kFoldThreads) {
    for (int64_t i = width; i < args.out_stride; ++i) {
      args.out[(sequence.first_row + row) * args.out_stride + i] = 0;
    }
  }
}

// A thread per dimension, blocks of a token side by side.
__global__ void __launch_bounds__(kFoldThreads) StoreKvKernel(StoreKvArgs args) {
  const int64_t token = blockIdx.x;
  const int64_t slot = args.slots[token];
  if (slot < 0) return;
  const int64_t d = args.cache.head_dim;
  const int64_t padded = (d + 15) / 16 * 16;
  const int64_t place = slot % kBlockTokens;
  const float* keys = args.keys + token * args.token_stride;
  const float* values = args.values + token * args.token_stride;
  std::byte* block = args.cache.data + slot / kBlockTokens * args.cache.block_stride_bytes;
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kFoldThreads + threadIdx.x;
  if (i >= args.cache.kv_heads * padded) return;
  const int64_t head = i / padded;
  const int64_t dim = i % padded;
  std::byte* to = block + head * KvHeadBytes(d);
  auto* key = reinterpret_cast<uint16_t*>(to + dim / 2 * kLineBytes + place * 4 + dim % 2 * 2);
  auto* value = reinterpret_cast<uint16_t*>(to + KvKeyBytes(d) + (place / 2 * padded + dim) * 4 +
                                            place % 2 * 2);
  if (dim < (d + 1) / 2 * 2) *key = dim < d ? RoundBf16(keys[head * d + dim]) : uint16_t{0};
  *value = dim < d ? RoundBf16(values[head * d + dim]) : uint16_t{0};
}

template <int kDim, bool kFits>
LaunchResult LaunchAttention(const AttentionArgs& args, StreamHandle stream) {
  const auto heads = static_cast<unsigned>(args.cache.kv_heads);
  const auto sequences = static_cast<unsigned>(args.num_sequences);
  const int64_t queries = args.max_rows * (args.heads / args.cache.kv_heads);
  const auto launch = [&](auto* kernel, int tiles, unsigned parts) {
    return Launch("attention", kernel,
                  dim3(CeilDiv(queries, kTileQueries * tiles), heads, sequences * parts),
                  kAttentionThreads<kDim> * tiles, stream, args);
  };
  if (!args.split) {
    return launch(AttentionKernel<kDim, false, (kFits && kOneWarp<kDim>)>, kTiles<kDim, false>, 1);
  }
  const LaunchResult result = launch(AttentionKernel<kDim, true, kFits>, kTiles<kDim, true>,
                                     static_cast<unsigned>(Chunks(args.max_context)));
  if (!result.ok()) return result;
  return Launch("attention_fold", FoldKernel,
                dim3(static_cast<unsigned>(queries), heads, sequences), kFoldThreads, stream, args);
}

template <int kDim>
LaunchResult LaunchAttention(const AttentionArgs& args, StreamHandle stream) {
  return args.cache.head_dim == kDim ? LaunchAttention<kDim, true>(args, stream)
                                     : LaunchAttention<kDim, false>(args, stream);
}

// Loads those of one size of heads.
template <int kDim>
LaunchResult LoadKernelsOf() {
  return Load("attention", AttentionKernel<kDim, false, false>,
              AttentionKernel<kDim, false, kOneWarp<kDim>>, AttentionKernel<kDim, true, false>,
              AttentionKernel<kDim, true, true>);
}

}  // namespace

int64_t AttentionWorkspaceFloats(const AttentionArgs& args) {
  return args.num_sequences * args.heads * args.max_rows * Chunks(args.max_context) *
         PartialFloats(args.cache.head_dim);
}

LaunchResult LoadAttentionKernels() {
  for (const auto& load : {LoadKernelsOf<64>, LoadKernelsOf<128>, LoadKernelsOf<256>}) {
    const LaunchResult result = load();
    if (!result.ok()) return result;
  }
  return Load("attention", FoldKernel, ZeroPaddingKernel, StoreKvKernel);
}

LaunchResult StoreKv(const StoreKvArgs& args, StreamHandle stream) {
  const int64_t dimensions = args.cache.kv_heads * ((args.cache.head_dim + 15) / 16 * 16);
  const dim3 grid(static_cast<unsigned>(args.tokens), CeilDiv(dimensions, kFoldThreads));
  return Launch("store_kv", StoreKvKernel, grid, kFoldThreads, stream, args);
}

LaunchResult Attention(const AttentionArgs& args, StreamHandle stream) {
  const int64_t d = args.cache.head_dim;
  if (d < 2 || d > kMaxHeadDim || d % 2 != 0 || args.cache.kv_heads < 1 ||
      args.heads % args.cache.kv_heads != 0) {
    return Refuse("attention", "head size or number of heads out of range");
  }
  if (args.num_sequences * (args.split ? Chunks(args.max_context) : 1) > 65535) {
    return Refuse("attention", "too many sequences, or too long ones, for one launch");
  }
  if (args.out_stride > args.heads * d) {
    const LaunchResult result =
        Launch("attention_padding", ZeroPaddingKernel,
               dim3(static_cast<unsigned>(args.num_sequences)), kFoldThreads, stream, args);
    if (!result.ok()) return result;
  }
  if (d <= 64) return LaunchAttention<64>(args, stream);
  if (d <= 128) return LaunchAttention<128>(args, stream);
  return LaunchAttention<256>(args, stream);
}

}  // namespace moesaic::cuda
