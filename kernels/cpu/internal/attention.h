// Attention on the blocked KV cache (bf16 or f32), f32 arithmetic in every class. Included after
// Vec16 and math.h.
//
// Scores: lanes are the 16 keys of a block, one chain of multiply-adds in ascending head dimension.
// Values: lanes are 16 head dimensions, one chain in ascending position. Positions outside the
// context are masked by selection, and their values are never read: the tail of a block may be
// uninitialised.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

// How keys and values of one type are read and written. A pair is two consecutive head dimensions.
struct Bf16Kv {
  static constexpr int64_t kBytes = 2;
  static constexpr int64_t kPairLines = 1;
  MOESAIC_INLINE static int64_t KeyBytes(int64_t head_dim) {
    return CeilDiv(head_dim, 2) * kLineBytes;
  }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Key(const std::byte* keys, int64_t pair) {
    return kOdd ? LoadOdd(keys + pair * kLineBytes) : LoadEven(keys + pair * kLineBytes);
  }
  MOESAIC_INLINE static void StoreKey(std::byte* keys, int64_t token, int64_t d, const float* key) {
    for (int64_t i = 0; i < d; i += 2) {
      const uint32_t low = RoundBf16(key[i]);
      const uint32_t high = i + 1 < d ? RoundBf16(key[i + 1]) : 0;
      StoreAs(keys + i / 2 * kLineBytes + token * 4, low | high << 16);
    }
  }
  MOESAIC_INLINE static Vec16 Value(const std::byte* row, int64_t dim) {
    return LoadBf16(row + dim * kBytes);
  }
  MOESAIC_INLINE static void StoreValue(std::byte* row, int64_t dim, Vec16 value) {
    StoreBf16(row + dim * kBytes, value);
  }
};

struct F32Kv {
  static constexpr int64_t kBytes = 4;
  static constexpr int64_t kPairLines = 2;
  MOESAIC_INLINE static int64_t KeyBytes(int64_t head_dim) { return head_dim * kLineBytes; }
  template <int kOdd>
  MOESAIC_INLINE static Vec16 Key(const std::byte* keys, int64_t pair) {
    return Load(keys + (2 * pair + kOdd) * kLineBytes);
  }
  MOESAIC_INLINE static void StoreKey(std::byte* keys, int64_t token, int64_t d, const float* key) {
    for (int64_t i = 0; i < d; ++i) StoreAs(keys + i * kLineBytes + token * 4, key[i]);
  }
  MOESAIC_INLINE static Vec16 Value(const std::byte* row, int64_t dim) {
    return Load(row + dim * kBytes);
  }
  MOESAIC_INLINE static void StoreValue(std::byte* row, int64_t dim, Vec16 value) {
    Store(row + dim * kBytes, value);
  }
};

template <class Kv>
MOESAIC_INLINE int64_t ValueRowBytes(const KvLayout& layout) {
  return RoundUp(layout.head_dim, kLanes) * Kv::kBytes;
}
template <class Kv>
MOESAIC_INLINE int64_t HeadBytes(const KvLayout& layout) {
  return Kv::KeyBytes(layout.head_dim) + kKvBlockTokens * ValueRowBytes<Kv>(layout);
}
MOESAIC_INLINE int64_t PartialFloats(int64_t head_dim) { return RoundUp(head_dim, 16) + 16; }

template <class Kv>
void StoreKvOf(const KvLayout& layout, std::byte* block, int64_t kv_head, int64_t token_in_block,
               const float* key, const float* value) {
  std::byte* keys = block + kv_head * HeadBytes<Kv>(layout);
  const int64_t d = layout.head_dim;
  Kv::StoreKey(keys, token_in_block, d, key);
  std::byte* row = keys + Kv::KeyBytes(d) + token_in_block * ValueRowBytes<Kv>(layout);
  for (int64_t i = 0; i < d; i += kLanes) {
    Kv::StoreValue(row, i, LoadFirst(value + i, MinOf(d - i, kLanes)));
  }
}

void StoreKv(const KvLayout& layout, std::byte* block, int64_t kv_head, int64_t token_in_block,
             const float* key, const float* value) {
  if (layout.type == WeightType::kF32) {
    StoreKvOf<F32Kv>(layout, block, kv_head, token_in_block, key, value);
  } else {
    StoreKvOf<Bf16Kv>(layout, block, kv_head, token_in_block, key, value);
  }
}

// One call of attend_chunk: blocks [block_begin, block_end) hold positions [begin, end) of the
// chunk.
struct ChunkView {
  const AttendArgs* args;
  int64_t block_begin;
  int64_t block_end;
  int64_t begin;
  int64_t end;
  float* scratch;  // [group][kAttentionChunkTokens], entry 0 is the first position of block_begin

  template <class Kv>
  MOESAIC_INLINE const std::byte* Head(int64_t block) const {
    return args->blocks[block] + args->kv_head * HeadBytes<Kv>(args->layout);
  }
};

template <class Kv, int G, int B, int kOdd>
MOESAIC_INLINE void ScoreStep(const float* q, int64_t q_stride, const std::byte* const (&keys)[B],
                              int64_t pair, Vec16 (&scores)[G][B]) {
  Vec16 k[B];
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) k[b] = Kv::template Key<kOdd>(keys[b], pair);
  MOESAIC_UNROLL
  for (int g = 0; g < G; ++g) {
    const Vec16 value = Set(q[g * q_stride + 2 * pair + kOdd]);
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) scores[g][b] = Fma(value, k[b], scores[g][b]);
  }
}

// Scaled scores of G heads from `head` on and B blocks from `block` on into the scratch; -inf where
// masked.
template <class Kv, int G, int B>
void ScoreBlocks(const ChunkView& view, int64_t head, int64_t block) {
  const AttendArgs& args = *view.args;
  const float* q = args.q + head * args.q_stride;
  const int64_t d = args.layout.head_dim;
  const std::byte* keys[B];
  Vec16 scores[G][B];
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) keys[b] = view.Head<Kv>(block + b);
  MOESAIC_UNROLL
  for (int g = 0; g < G; ++g) {
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) scores[g][b] = Zero();
  }
  // A block is a short stretch of memory, too short for the hardware to see a stream: ask for the
  // keys of the next blocks, and for the values of these (as many lines as keys) one level further
  // away.
  const std::byte* next_keys[B];
  const int64_t last = CeilDiv(args.context_end, kKvBlockTokens) - 1;
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) next_keys[b] = view.Head<Kv>(MinOf(block + B + b, last));
  const int64_t values_offset = Kv::KeyBytes(d);
  for (int64_t pair = 0; pair < d / 2; ++pair) {
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) {
      MOESAIC_UNROLL
      for (int64_t line = 0; line < Kv::kPairLines; ++line) {
        const int64_t at = (pair * Kv::kPairLines + line) * kLineBytes;
        __builtin_prefetch(next_keys[b] + at);
        __builtin_prefetch(keys[b] + values_offset + at, 0, 2);
      }
    }
    ScoreStep<Kv, G, B, 0>(q, args.q_stride, keys, pair, scores);
    ScoreStep<Kv, G, B, 1>(q, args.q_stride, keys, pair, scores);
  }
  if (d % 2 != 0) ScoreStep<Kv, G, B, 0>(q, args.q_stride, keys, d / 2, scores);
  const Vec16 scale = Set(args.scale);
  const Vec16 masked = Set(-kInfinity);
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) {
    const int64_t first = (block + b) * kKvBlockTokens;
    const int64_t from = MaxOf<int64_t>(view.begin - first, 0);
    const int64_t to = MinOf(view.end - first, kKvBlockTokens);
    MOESAIC_UNROLL
    for (int g = 0; g < G; ++g) {
      float* out = view.scratch + (head + g) * kAttentionChunkTokens +
                   (block + b - view.block_begin) * kKvBlockTokens;
      Store(out, KeepRange(Mul(scores[g][b], scale), from, to, masked));
    }
  }
}

// out += p * v for G heads from `head` on and D vectors of 16 dimensions from `dim` on.
template <class Kv, int G, int D>
void AccumulateValues(const ChunkView& view, int64_t head, int64_t dim, float* partial,
                      int64_t partial_stride) {
  const AttendArgs& args = *view.args;
  const int64_t row_bytes = ValueRowBytes<Kv>(args.layout);
  const int64_t values_offset = Kv::KeyBytes(args.layout.head_dim);
  const int64_t token_bytes = RoundUp(values_offset, kKvBlockTokens * kLineBytes) / kKvBlockTokens;
  const int64_t last = CeilDiv(args.context_end, kKvBlockTokens) - 1;
  Vec16 sums[G][D];
  MOESAIC_UNROLL
  for (int g = 0; g < G; ++g) {
    MOESAIC_UNROLL
    for (int d = 0; d < D; ++d) sums[g][d] = Zero();
  }
  for (int64_t block = view.block_begin; block < view.block_end; ++block) {
    const int64_t first = block * kKvBlockTokens;
    const int64_t from = MaxOf<int64_t>(view.begin - first, 0);
    const int64_t to = MinOf(view.end - first, kKvBlockTokens);
    const std::byte* values = view.Head<Kv>(block) + values_offset;
    const float* weights =
        view.scratch + head * kAttentionChunkTokens + (block - view.block_begin) * kKvBlockTokens;
    // Memory would idle here (the values are near by now): ask for the same block of the next
    // chunk.
    const std::byte* next_keys = nullptr;
    if (dim == 0 && block + kAttentionChunkTokens / kKvBlockTokens <= last) {
      next_keys = view.Head<Kv>(block + kAttentionChunkTokens / kKvBlockTokens);
    }
    for (int64_t token = from; token < to; ++token) {
      if (next_keys != nullptr) {
        for (int64_t at = token * token_bytes; at < (token + 1) * token_bytes; at += kLineBytes) {
          __builtin_prefetch(next_keys + at, 0, 2);
        }
      }
      Vec16 v[D];
      MOESAIC_UNROLL
      for (int d = 0; d < D; ++d) v[d] = Kv::Value(values + token * row_bytes, dim + d * kLanes);
      MOESAIC_UNROLL
      for (int g = 0; g < G; ++g) {
        const Vec16 weight = Set(weights[g * kAttentionChunkTokens + token]);
        MOESAIC_UNROLL
        for (int d = 0; d < D; ++d) sums[g][d] = Fma(weight, v[d], sums[g][d]);
      }
    }
  }
  MOESAIC_UNROLL
  for (int g = 0; g < G; ++g) {
    MOESAIC_UNROLL
    for (int d = 0; d < D; ++d) {
      Store(partial + (head + g) * partial_stride + dim + d * kLanes, sums[g][d]);
    }
  }
}

// Scores, softmax terms and values of G heads from `head` on.
template <class Kv, int G>
void AttendHeads(const ChunkView& view, int64_t head, float* partial) {
  const int64_t head_dim = view.args->layout.head_dim;
  const int64_t padded = RoundUp(head_dim, kLanes);
  const int64_t stride = PartialFloats(head_dim);
  constexpr int kBlocks = ScoreBlocksFor(G);
  int64_t block = view.block_begin;
  for (; block + kBlocks <= view.block_end; block += kBlocks)
    ScoreBlocks<Kv, G, kBlocks>(view, head, block);
  for (; block < view.block_end; ++block) ScoreBlocks<Kv, G, 1>(view, head, block);

  const int64_t tokens = (view.block_end - view.block_begin) * kKvBlockTokens;
  for (int64_t g = head; g < head + G; ++g) {
    float* scores = view.scratch + g * kAttentionChunkTokens;
    const float max = MaxOfRow(scores, tokens);
    // Masked scores are -inf and become exactly 0.
    const float sum = SumExp(scores, tokens, ExpShift(max), scores);
    partial[g * stride + padded] = max;
    partial[g * stride + padded + 1] = sum;
  }

  constexpr int kVectors = ValueVectorsFor(G);
  int64_t dim = 0;
  for (; dim + kVectors * kLanes <= padded; dim += kVectors * kLanes) {
    AccumulateValues<Kv, G, kVectors>(view, head, dim, partial, stride);
  }
  if constexpr (kVectors > 2) {
    for (; dim + 2 * kLanes <= padded; dim += 2 * kLanes) {
      AccumulateValues<Kv, G, 2>(view, head, dim, partial, stride);
    }
  }
  for (; dim < padded; dim += kLanes) AccumulateValues<Kv, G, 1>(view, head, dim, partial, stride);
}

template <class Kv, int G = kMaxHeads>
void AttendGroup(const ChunkView& view, int64_t head, int64_t heads, float* partial) {
  if constexpr (G > 1) {
    if (heads < G) return AttendGroup<Kv, G - 1>(view, head, heads, partial);
  }
  AttendHeads<Kv, G>(view, head, partial);
}

void AttendChunk(const AttendArgs& args, int64_t chunk, float* partial, float* scratch) {
  const int64_t begin = MaxOf(chunk * kAttentionChunkTokens, args.context_begin);
  const int64_t end = MinOf((chunk + 1) * kAttentionChunkTokens, args.context_end);
  if (begin >= end) {
    const int64_t padded = RoundUp(args.layout.head_dim, kLanes);
    const int64_t stride = PartialFloats(args.layout.head_dim);
    for (int64_t g = 0; g < args.group; ++g) {
      for (int64_t d = 0; d < padded; d += kLanes) Store(partial + g * stride + d, Zero());
      partial[g * stride + padded] = -kInfinity;
      partial[g * stride + padded + 1] = 0.0f;
    }
    return;
  }
  const ChunkView view = {&args,  begin / kKvBlockTokens, CeilDiv(end, kKvBlockTokens), begin, end,
                          scratch};
  // The f32 cache is for reference runs: one head at a time spares seven more tilings to compile.
  // The tiling of the heads does not change a bit.
  if (args.layout.type == WeightType::kF32) {
    for (int64_t head = 0; head < args.group; ++head) AttendHeads<F32Kv, 1>(view, head, partial);
    return;
  }
  for (int64_t head = 0; head < args.group; head += kMaxHeads) {
    AttendGroup<Bf16Kv>(view, head, MinOf<int64_t>(args.group - head, kMaxHeads), partial);
  }
}

// Two passes: the largest maximum, then every partial scaled to it, in ascending order.
void MergeChunks(const float* partials, int64_t chunks, int64_t group, int64_t head_dim, float* out,
                 int64_t out_stride) {
  const int64_t padded = RoundUp(head_dim, kLanes);
  const int64_t stride = PartialFloats(head_dim);
  for (int64_t g = 0; g < group; ++g) {
    float max = -kInfinity;
    for (int64_t c = 0; c < chunks; ++c) {
      const float chunk_max = partials[(c * group + g) * stride + padded];
      max = chunk_max > max ? chunk_max : max;
    }
    const Vec16 shift = Set(ExpShift(max));
    Vec16 sum = Zero();
    float* to = out + g * out_stride;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      Vec16 value = Zero();
      sum = Zero();
      for (int64_t c = 0; c < chunks; ++c) {
        const float* partial = partials + (c * group + g) * stride;
        if (partial[padded + 1] == 0.0f) continue;  // no position in this chunk
        const Vec16 factor = Exp(Sub(Set(partial[padded]), shift));
        sum = Fma(Set(partial[padded + 1]), factor, sum);
        value = Fma(Load(partial + d), factor, value);
      }
      // An empty context gives zeros.
      const Vec16 result = SelectLess(Zero(), sum, Div(value, sum), SelectNan(sum, sum, Zero()));
      StoreFirst(to + d, MinOf(head_dim - d, kLanes), result);
    }
  }
}

}  // namespace
}  // namespace moesaic
