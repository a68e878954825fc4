// Attention on the blocked KV cache (bf16, f32 or int8) in f32 arithmetic; class kAmxBf16 has
// another for most head sizes (amx_attention.h). Included after Vec16 and math.h.
//
// A query is one head of one row. Up to kMaxQueries queries that share the KV head form a tile: the
// heads of a group when decoding, of several rows in prefill. Scores: lanes are the 16 keys of a
// block, one chain of multiply-adds in ascending head dimension. Values: lanes are 16 head
// dimensions, one chain in ascending position. So a query's bits do not depend on its tile.
// Positions that a query does not see are masked by selection, and their values are never read:
// they may be uninitialised. Scales of int8 keys are multiplied with the scores, those of values
// with the weights. Values of latent attention are turned out of the keys into the scratch, once
// for all tiles of a chunk.
#pragma once

#include "kernels/cpu/internal/latent_values.h"

namespace moesaic {
namespace {

MOESAIC_INLINE int64_t PartialFloats(int64_t value_dim) { return RoundUp(value_dim, 16) + 16; }
static_assert(kMaxQueries <= kMaxAttentionTile);

// How far ahead of its use memory is asked for: beyond its latency, within a level 1 cache.
constexpr int64_t kAheadBytes = 8192;
// Values that are gone through once for every few columns of the tile.
constexpr int64_t kRunBytes = 8192;

struct Query {
  const float* q;
  float* total;        // the partial that the chunk is folded into
  int64_t begin, end;  // positions of the chunk that it sees
};

struct QueryTile {
  const AttendArgs* args;
  int64_t kv_head;
  const Query* queries;
  int64_t block_begin, block_end;  // blocks that any query sees
  int64_t begin, end;              // positions that all queries see
  // Whose keys are read after the values of this tile; next_begin == next_end: nobody's.
  int64_t next_begin, next_end, next_head;
  bool first;          // of its chunk and head: no tile has read the keys and values before
  bool last;           // likewise: what is read next is of another head or chunk
  float* weights;      // [queries][kAttentionChunkTokens] from block_begin on: scores, then exp
  float* partials;     // [queries][PartialFloats]
  float* rounded;      // room for the queries in bf16
  std::byte* image;    // room for the chunk's keys and values in bf16, where they are int8, or
                       // for its values, where they are in the keys
  int64_t* image_end;  // blocks before it are there

  MOESAIC_INLINE int64_t value_dim() const { return args->layout.value_dim(); }
  template <class Kv>
  MOESAIC_INLINE const std::byte* KeysOf(int64_t head, int64_t block) const {
    return args->blocks[block] + head * HeadBytes<Kv>(args->layout.head_dim);
  }
  template <class Kv>
  MOESAIC_INLINE const std::byte* Keys(int64_t block) const {
    return KeysOf<Kv>(kv_head, block);
  }
  template <class Kv>
  MOESAIC_INLINE const std::byte* Values(int64_t block) const {
    if constexpr (Kv::kLatent) return LatentValues<Kv>(block);
    return Keys<Kv>(block) + Kv::KeyBytes(args->layout.head_dim);
  }
  template <class Kv>
  MOESAIC_INLINE std::byte* LatentValues(int64_t block) const {
    constexpr int64_t kChunkBlocks = kAttentionChunkTokens / kKvBlockTokens;
    return image + block % kChunkBlocks * LatentValueBytes<Kv>(value_dim());
  }
  // What is read when `block` blocks of values are done; `block` may be past the end.
  template <class Kv>
  MOESAIC_INLINE const std::byte* ValuesOrNextKeys(int64_t block) const {
    if (block < block_end) return Values<Kv>(block);
    if (next_begin == next_end) return Values<Kv>(block_end - 1);
    return KeysOf<Kv>(next_head, MinOf(next_begin + block - block_end, next_end - 1));
  }
};

template <class Kv, int M, int B, int kOdd>
MOESAIC_INLINE void ScoreStep(const float* const (&q)[M], const std::byte* const (&keys)[B],
                              int64_t pair, Vec16 (&scores)[M][B]) {
  Vec16 k[B];
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) k[b] = Kv::template Key<kOdd>(keys[b], pair);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const Vec16 value = Set(q[m][2 * pair + kOdd]);
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) scores[m][b] = Fma(value, k[b], scores[m][b]);
  }
}

// Scaled scores of B blocks from `block` on into the weights; -inf where masked.
template <class Kv, int M, int B>
void ScoreBlocks(const QueryTile& tile, int64_t block) {
  const AttendArgs& args = *tile.args;
  const int64_t d = args.layout.head_dim;
  const float* q[M];
  const std::byte* keys[B];
  const std::byte* next[B];
  Vec16 scores[M][B];
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) {
    keys[b] = tile.Keys<Kv>(block + b);
    const int64_t then = block + B + b;
    next[b] = then < tile.block_end
                  ? tile.Keys<Kv>(then)
                  : tile.ValuesOrNextKeys<Kv>(tile.block_begin + then - tile.block_end);
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    q[m] = tile.queries[m].q;
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) scores[m][b] = Zero();
  }
  constexpr int64_t kPairBytes = Kv::kBytes < 2 ? 2 * kKvBlockTokens * Kv::kBytes : kLineBytes;
  const int64_t pairs = d / 2;
  const int64_t ahead = MinOf(kAheadBytes / kPairBytes / B, pairs);
  for (int64_t pair = 0; pair < pairs - ahead; ++pair) {
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) __builtin_prefetch(keys[b] + (pair + ahead) * kPairBytes);
    ScoreStep<Kv, M, B, 0>(q, keys, pair, scores);
    ScoreStep<Kv, M, B, 1>(q, keys, pair, scores);
  }
  for (int64_t pair = pairs - ahead; pair < pairs; ++pair) {
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) __builtin_prefetch(next[b] + (pair + ahead - pairs) * kPairBytes);
    ScoreStep<Kv, M, B, 0>(q, keys, pair, scores);
    ScoreStep<Kv, M, B, 1>(q, keys, pair, scores);
  }
  if (d % 2 != 0) ScoreStep<Kv, M, B, 0>(q, keys, pairs, scores);

  const Vec16 scale = Set(args.scale);
  const Vec16 masked = Set(-kInfinity);
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) {
    const int64_t first = (block + b) * kKvBlockTokens;
    const bool whole = tile.begin <= first && first + kKvBlockTokens <= tile.end;
    const Vec16 factor = Kv::kScaleBytes > 0 ? Mul(Load(keys[b]), scale) : scale;
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      float* out =
          tile.weights + m * kAttentionChunkTokens + first - tile.block_begin * kKvBlockTokens;
      Vec16 score = Mul(scores[m][b], factor);
      if (!whole) {
        const int64_t from = MinOf(MaxOf<int64_t>(tile.queries[m].begin - first, 0), kLanes);
        const int64_t to = MinOf(MaxOf<int64_t>(tile.queries[m].end - first, 0), kLanes);
        score = KeepRange(score, from, to, masked);
      }
      Store(out, score);
    }
  }
}

template <class Kv, int M, int D, int kOdd>
MOESAIC_INLINE void ValueStep(const std::byte* values, int64_t pair, int64_t padded, int64_t dim,
                              const float* weights, Vec16 (&sums)[M][D]) {
  Vec16 v[D];
  MOESAIC_UNROLL
  for (int d = 0; d < D; ++d)
    v[d] = Kv::template Value<kOdd>(values, pair, padded, dim + d * kLanes);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const Vec16 weight = Set(weights[m * kAttentionChunkTokens + 2 * pair + kOdd]);
    MOESAIC_UNROLL
    for (int d = 0; d < D; ++d) sums[m][d] = Fma(weight, v[d], sums[m][d]);
  }
}

// Tokens [from, to) of a block, from its values, their weights and, to be asked for, what is read
// a while later.
template <class Kv, int M, int D>
MOESAIC_INLINE void AddTokens(const std::byte* values, const std::byte* ahead, int64_t padded,
                              int64_t dim, const float* weights, int64_t from, int64_t to,
                              Vec16 (&sums)[M][D]) {
  for (int64_t pair = from / 2; pair < CeilDiv(to, 2); ++pair) {
    MOESAIC_UNROLL
    for (int d = 0; d < D; ++d) {
      __builtin_prefetch(ahead + (pair * padded + dim + d * kLanes) * 2 * Kv::kBytes);
    }
    if (2 * pair >= from) ValueStep<Kv, M, D, 0>(values, pair, padded, dim, weights, sums);
    if (2 * pair + 1 < to) ValueStep<Kv, M, D, 1>(values, pair, padded, dim, weights, sums);
  }
}

// Tokens [from, to) of blocks [begin, end).
struct ValueRun {
  int64_t begin, end;
  int64_t from = 0;
  int64_t to = kKvBlockTokens;
};

// partials += weights * values for M queries from `query` on and D vectors of 16 dimensions from
// `dim` on.
template <class Kv, int M, int D>
MOESAIC_INLINE void AddValueColumns(const QueryTile& tile, int64_t query, const ValueRun& run,
                                    int64_t ahead_blocks, int64_t dim) {
  const int64_t padded = RoundUp(tile.value_dim(), kLanes);
  const int64_t stride = padded + 16;
  float* partial = tile.partials + query * stride + dim;
  Vec16 sums[M][D];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int d = 0; d < D; ++d) sums[m][d] = Load(partial + m * stride + d * kLanes);
  }
  for (int64_t block = run.begin; block < run.end; ++block) {
    const std::byte* values = tile.Values<Kv>(block);
    const std::byte* ahead = tile.ValuesOrNextKeys<Kv>(block + ahead_blocks);
    const float* weights =
        tile.weights + query * kAttentionChunkTokens + (block - tile.block_begin) * kKvBlockTokens;
    if (run.to - run.from == kKvBlockTokens) {
      AddTokens<Kv, M, D>(values, ahead, padded, dim, weights, 0, kKvBlockTokens, sums);
    } else {
      AddTokens<Kv, M, D>(values, ahead, padded, dim, weights, run.from, run.to, sums);
    }
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int d = 0; d < D; ++d) Store(partial + m * stride + d * kLanes, sums[m][d]);
  }
}

template <class Kv, int M>
void AddValueRun(const QueryTile& tile, int64_t query, const ValueRun& run, int64_t ahead_blocks) {
  if (run.from >= run.to) return;
  constexpr int kVectors = ValueVectorsFor(M);
  const int64_t padded = RoundUp(tile.value_dim(), kLanes);
  int64_t dim = 0;
  for (; dim + kVectors * kLanes <= padded; dim += kVectors * kLanes) {
    AddValueColumns<Kv, M, kVectors>(tile, query, run, ahead_blocks, dim);
  }
  if constexpr (kVectors > 2) {
    for (; dim + 2 * kLanes <= padded; dim += 2 * kLanes) {
      AddValueColumns<Kv, M, 2>(tile, query, run, ahead_blocks, dim);
    }
  }
  for (; dim < padded; dim += kLanes) {
    AddValueColumns<Kv, M, 1>(tile, query, run, ahead_blocks, dim);
  }
}

template <class Kv, int M>
void AddValues(const QueryTile& tile) {
  const int64_t dim = tile.value_dim();
  const int64_t value_bytes =
      Kv::kLatent ? LatentValueBytes<Kv>(dim) : HeadBytes<Kv>(dim) - Kv::KeyBytes(dim);
  const int64_t ahead_blocks = CeilDiv(kAheadBytes, value_bytes);
  // Blocks whose columns are taken one after the other while they are near.
  const int64_t run_blocks = MaxOf<int64_t>(kRunBytes / value_bytes, 1);
  const auto in_block = [](int64_t position, int64_t block) {
    return MinOf(MaxOf<int64_t>(position - block * kKvBlockTokens, 0), kKvBlockTokens);
  };
  int64_t block = tile.block_begin;
  while (block < tile.block_end) {
    const int64_t from = in_block(tile.begin, block);
    const int64_t to = in_block(tile.end, block);
    if (to - from == kKvBlockTokens) {
      const int64_t end = MinOf(block + run_blocks, tile.end / kKvBlockTokens);
      AddValueRun<Kv, M>(tile, 0, {block, end}, ahead_blocks);
      block = end;
      continue;
    }
    // What not all queries see is added query by query, before and after what all see, so that
    // every query has its positions in ascending order.
    for (int64_t m = 0; from > 0 && m < M; ++m) {
      const Query& query = tile.queries[m];
      AddValueRun<Kv, 1>(tile, m,
                         {block, block + 1, in_block(query.begin, block),
                          in_block(MinOf(query.end, tile.begin), block)},
                         ahead_blocks);
    }
    if (from < to) AddValueRun<Kv, M>(tile, 0, {block, block + 1, from, to}, ahead_blocks);
    for (int64_t m = 0; to < kKvBlockTokens && m < M; ++m) {
      const Query& query = tile.queries[m];
      AddValueRun<Kv, 1>(tile, m,
                         {block, block + 1, in_block(MaxOf(query.begin, tile.end), block),
                          in_block(query.end, block)},
                         ahead_blocks);
    }
    ++block;
  }
}

// total = total and `partial` merged. A sum of 0 means that there is no position in a partial.
void FoldPartial(const float* partial, int64_t value_dim, float* total) {
  const int64_t padded = RoundUp(value_dim, kLanes);
  if (partial[padded + 1] == 0.0f) return;
  if (total[padded + 1] == 0.0f) {
    for (int64_t d = 0; d <= padded; d += kLanes) Store(total + d, Load(partial + d));
    return;
  }
  const float max = MaxOf(partial[padded], total[padded]);
  const Vec16 shift = Set(ExpShift(max));
  const Vec16 keep = Exp(Sub(Set(total[padded]), shift));
  const Vec16 factor = Exp(Sub(Set(partial[padded]), shift));
  // The last vector holds the maximum, which is set afterwards, and the sum.
  for (int64_t d = 0; d <= padded; d += kLanes) {
    Store(total + d, Fma(Load(partial + d), factor, Mul(Load(total + d), keep)));
  }
  total[padded] = max;
}

template <class Kv, int M>
void AttendTile(const QueryTile& tile) {
  const int64_t value_dim = tile.value_dim();
  const int64_t padded = RoundUp(value_dim, kLanes);
  constexpr int kBlocks = ScoreBlocksFor(M);
  int64_t block = tile.block_begin;
  for (; block + kBlocks <= tile.block_end; block += kBlocks) {
    ScoreBlocks<Kv, M, kBlocks>(tile, block);
  }
  for (; block < tile.block_end; ++block) ScoreBlocks<Kv, M, 1>(tile, block);

  const int64_t tokens = (tile.block_end - tile.block_begin) * kKvBlockTokens;
  for (int64_t m = 0; m < M; ++m) {
    float* weights = tile.weights + m * kAttentionChunkTokens;
    float* partial = tile.partials + m * PartialFloats(value_dim);
    for (int64_t d = 0; d <= padded; d += kLanes) Store(partial + d, Zero());
    // Masked scores are -inf and become exactly 0.
    partial[padded] = MaxOfRow(weights, tokens);
    partial[padded + 1] = SumExp(weights, tokens, ExpShift(partial[padded]), weights);
    for (int64_t i = 0; Kv::kScaleBytes > 0 && i < tokens; i += kKvBlockTokens) {
      const Vec16 scales = Load(tile.Values<Kv>(tile.block_begin + i / kKvBlockTokens));
      Store(weights + i, Mul(Load(weights + i), scales));
    }
  }
  AddValues<Kv, M>(tile);
  for (int64_t m = 0; m < M; ++m) {
    FoldPartial(tile.partials + m * PartialFloats(value_dim), value_dim, tile.queries[m].total);
  }
}

// The tile's blocks whose values no tile before has turned.
template <class Kv>
void TurnValues(const QueryTile& tile) {
  int64_t& end = *tile.image_end;
  for (int64_t block = MaxOf(tile.block_begin, end); block < tile.block_end; ++block) {
    TurnKeys<Kv>(tile.Keys<Kv>(block), tile.value_dim(), tile.LatentValues<Kv>(block));
  }
  end = MaxOf(end, tile.block_end);
}

// Queries of the next tile when `left` are left: the tallest tiles, and never a very low one.
MOESAIC_INLINE int64_t TileQueries(int64_t left) {
  if (left <= kMaxExactQueries) return left;
  if (left == kMaxQueries || left >= 2 * kMaxQueries) return kMaxQueries;
  return MinOf<int64_t>(CeilDiv(left, 2), kMaxExactQueries);
}

template <class Kv, int M = kMaxQueries>
void AttendQueries(const QueryTile& tile, int64_t queries) {
  if constexpr (M > 1) {
    if (queries < M) {
      constexpr int kLower = M <= kMaxExactQueries ? M - 1 : kMaxExactQueries;
      return AttendQueries<Kv, kLower>(tile, queries);
    }
  }
  AttendTile<Kv, M>(tile);
}

// Tiles in vectors.
struct VectorAttention {
  static int64_t NextQueries(const AttendArgs& args, int64_t left) {
    // The f32 cache is for reference runs: one query at a time spares the other tiles.
    return args.layout.type == WeightType::kF32 ? 1 : TileQueries(left);
  }
  static void Attend(const QueryTile& tile, int64_t queries) {
    if (tile.args->layout.latent_values > 0) {
      AttendLatent(tile, queries);
    } else if (tile.args->layout.type == WeightType::kF32) {
      AttendTile<F32Kv, 1>(tile);
    } else if (tile.args->layout.type == WeightType::kInt8) {
      AttendQueries<Int8Kv>(tile, queries);
    } else {
      AttendQueries<Bf16Kv>(tile, queries);
    }
  }
  static void AttendLatent(const QueryTile& tile, int64_t queries) {
    if (tile.args->layout.type == WeightType::kF32) {
      TurnValues<LatentKv<F32Kv>>(tile);
      AttendTile<LatentKv<F32Kv>, 1>(tile);
    } else {
      TurnValues<LatentKv<Bf16Kv>>(tile);
      AttendQueries<LatentKv<Bf16Kv>>(tile, queries);
    }
  }
};

// `Attention` says how many queries a tile has, at most kMaxAttentionTile, and computes it.
template <class Attention>
void AttendChunksBy(const AttendArgs& args, int64_t chunk_begin, int64_t chunk_end, float* partials,
                    int64_t chunk_stride, float* scratch) {
  const int64_t stride = PartialFloats(args.layout.value_dim());
  const int64_t context_end = args.context_end + args.rows - 1;  // of the last row
  Query queries[kMaxAttentionTile];
  for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk, partials += chunk_stride) {
    const int64_t chunk_first = chunk * kAttentionChunkTokens;
    const int64_t chunk_last = chunk_first + kAttentionChunkTokens;
    const auto begin_of = [&](int64_t row) {
      return MaxOf(args.window > 0 ? args.context_end + row - args.window : 0, chunk_first);
    };
    const auto end_of = [&](int64_t row) { return MinOf(args.context_end + row, chunk_last); };
    // Both grow with the row, so the rows that see something of the chunk are neighbours.
    int64_t row_begin = 0;
    int64_t row_end = args.rows;
    while (row_begin < row_end && end_of(row_begin) <= chunk_first) ++row_begin;
    while (row_begin < row_end && begin_of(row_end - 1) >= chunk_last) --row_end;
    const int64_t last = row_end * args.group;
    for (int64_t head = 0; head < args.kv_heads; ++head) {
      float* const totals = partials + head * args.rows * args.group * stride;
      int64_t image_end = 0;
      int64_t next = row_begin * args.group;
      while (next < last) {
        const int64_t count = Attention::NextQueries(args, last - next);
        QueryTile tile = {};
        tile.args = &args;
        tile.kv_head = args.kv_head + head;
        tile.queries = queries;
        tile.weights = scratch;
        tile.partials = scratch + kMaxAttentionTile * kAttentionChunkTokens;
        tile.rounded = tile.partials + kMaxAttentionTile * stride;
        tile.image =
            reinterpret_cast<std::byte*>(scratch + AttentionScratchFloats(args.layout.head_dim));
        tile.image_end = &image_end;
        tile.begin = begin_of((next + count - 1) / args.group);
        tile.end = end_of(next / args.group);
        tile.block_begin = begin_of(next / args.group) / kKvBlockTokens;
        tile.block_end = CeilDiv(end_of((next + count - 1) / args.group), kKvBlockTokens);
        if (tile.end < tile.begin) tile.end = tile.begin;
        tile.first = next == row_begin * args.group;
        for (int64_t i = 0; i < count; ++i, ++next) {
          const int64_t row = next / args.group;
          const int64_t query = head * args.group + next % args.group;
          queries[i] = {args.q + row * args.q_row_stride + query * args.q_stride,
                        totals + next * stride, begin_of(row), end_of(row)};
        }
        tile.last = next == last;
        const bool next_chunk = tile.last && head + 1 == args.kv_heads;
        tile.next_head = args.kv_head + (next < last ? head : (head + 1) % args.kv_heads);
        if (!next_chunk) {
          tile.next_begin = tile.block_begin;
          tile.next_end = tile.block_end;
        } else if (chunk + 1 < chunk_end) {
          tile.next_begin = chunk_last / kKvBlockTokens;
          tile.next_end = MaxOf(CeilDiv(context_end, kKvBlockTokens), tile.next_begin);
        }
        Attention::Attend(tile, count);
      }
    }
  }
}

inline void AttendChunks(const AttendArgs& args, int64_t chunk_begin, int64_t chunk_end,
                         float* partials, int64_t chunk_stride, float* scratch) {
  AttendChunksBy<VectorAttention>(args, chunk_begin, chunk_end, partials, chunk_stride, scratch);
}

inline void FoldPartials(const float* partials, int64_t queries, int64_t value_dim, float* totals) {
  const int64_t stride = PartialFloats(value_dim);
  for (int64_t i = 0; i < queries; ++i) {
    FoldPartial(partials + i * stride, value_dim, totals + i * stride);
  }
}

inline void FinishAttention(const float* totals, int64_t queries, int64_t value_dim, float* out,
                            int64_t out_stride) {
  const int64_t padded = RoundUp(value_dim, kLanes);
  for (int64_t i = 0; i < queries; ++i) {
    const float* total = totals + i * PartialFloats(value_dim);
    const Vec16 sum = Set(total[padded + 1]);
    const Vec16 none = SelectNan(sum, sum, Zero());  // an empty context gives zeros
    for (int64_t d = 0; d < value_dim; d += kLanes) {
      const Vec16 result = SelectLess(Zero(), sum, Div(Load(total + d), sum), none);
      // -0, which may hang on what else was in a tile, becomes +0.
      StoreFirst(out + i * out_stride + d, MinOf(value_dim - d, kLanes), Add(result, Zero()));
    }
  }
}

}  // namespace
}  // namespace moesaic
