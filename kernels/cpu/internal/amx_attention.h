// Attention on tile registers (class kAmxBf16): queries and the exponentials of scores rounded to
// bf16, sums in f32. For a cache of bf16 or int8 and head sizes that fill tiles; the rest is
// attention.h's, as are chunks, masks, partials and what asks for memory ahead. Included after
// attention.h and Tiles.
//
// The cache is in the layout of a tile of weights: a block's keys are 16 lines for each 32 head
// dimensions, its values 8 lines for each 16. A tile of up to 16 queries costs hardly more than one
// query, and less than its keys and values take from memory.
//
// A query's bits do not depend on its tile: a product of tiles adds to each row what it would add
// to it alone, and blocks that the query does not see have weights of 0. Where such a block may
// hold something that 0 times is not 0 (infinite, NaN, never written), each query multiplies with a
// copy that has zeros there.
//
// Of an int8 cache the blocks of a chunk are widened first (whole numbers, exact in bf16, and
// finite whatever lies there); scales of keys enter with the scores, those of values with the
// exponentials before they are rounded.
//
// Values of latent attention are turned out of a chunk's keys first, once for all its tiles.
#pragma once

#include "kernels/cpu/internal/attention.h"

namespace moesaic {
namespace {

constexpr int64_t kMostTiledHeadDim = 256;
constexpr int64_t kMostTiledLatent = 512;
constexpr int64_t kTiledDims = 64;  // of the values, in one pass over their blocks
constexpr int64_t kWeightStride = kAttentionChunkTokens * 4;  // bytes; bf16 in the place of floats

struct AmxAttention {
  static bool Fits(const KvLayout& layout) {
    if (layout.type == WeightType::kF32 || layout.head_dim % 32 != 0) return false;
    if (layout.latent_values == 0) return layout.head_dim <= kMostTiledHeadDim;
    return layout.latent_values % 32 == 0 && layout.latent_values <= kMostTiledLatent;
  }
  static int64_t NextQueries(const AttendArgs&, int64_t left) {
    return MinOf(left, kMaxAttentionTile);
  }

  static void Attend(const QueryTile& tile, int64_t queries) {
    if (tile.args->layout.latent_values > 0) {
      TurnValues<LatentKv<Bf16Kv>>(tile);
      AttendTileOf<Latent>(tile, queries);
    } else if (tile.args->layout.type != WeightType::kInt8) {
      AttendTileOf<InPlace>(tile, queries);
    } else if (tile.first && tile.last) {
      AttendTileOf<Streamed>(tile, queries);
    } else {
      WidenAll(tile);
      AttendTileOf<Widened>(tile, queries);
    }
  }

 private:
  // Where the keys of a block, and columns of its values, are in bf16.
  struct InPlace {
    static constexpr bool kScaled = false;
    static constexpr bool kAsks = true;
    static const std::byte* Keys(const QueryTile& tile, int64_t block) {
      return tile.Keys<Bf16Kv>(block);
    }
    template <int kTiles>
    static const std::byte* Values(const QueryTile& tile, int64_t block, int64_t dim) {
      return tile.Values<Bf16Kv>(block) + dim * 4;
    }
    template <int kTiles>
    static int64_t ValueStride(int64_t d) {
      return d * 4;
    }
  };
  struct Latent : InPlace {
    static constexpr bool kAsks = false;  // what turns values has just read the keys
    template <int kTiles>
    static const std::byte* Values(const QueryTile& tile, int64_t block, int64_t dim) {
      return tile.Values<LatentKv<Bf16Kv>>(block) + dim * 4;
    }
  };
  // An int8 chunk of which several tiles make use.
  struct Widened : InPlace {
    static constexpr bool kScaled = true;
    static constexpr bool kAsks = false;
    static std::byte* Keys(const QueryTile& tile, int64_t block) {
      constexpr int64_t kChunkBlocks = kAttentionChunkTokens / kKvBlockTokens;
      return tile.image + block % kChunkBlocks * HeadBytes<Bf16Kv>(tile.args->layout.head_dim);
    }
    template <int kTiles>
    static std::byte* Values(const QueryTile& tile, int64_t block, int64_t dim) {
      return Keys(tile, block) + Bf16Kv::KeyBytes(tile.args->layout.head_dim) + dim * 4;
    }
  };
  // An int8 chunk of which one tile makes use: what is widened stays in the first-level cache.
  struct Streamed {
    static constexpr bool kScaled = true;
    static constexpr bool kAsks = false;
    static constexpr int64_t kSlots = 4;
    static const std::byte* Keys(const QueryTile& tile, int64_t block) {
      const int64_t bytes = Bf16Kv::KeyBytes(tile.args->layout.head_dim);
      std::byte* const to = tile.image + block % kSlots * bytes;
      const int64_t then = block + kSlots;
      const std::byte* const next =
          then < tile.block_end
              ? tile.Keys<Int8Kv>(then)
              : tile.ValuesOrNextKeys<Int8Kv>(tile.block_begin + then - tile.block_end);
      WidenKeys(tile, block, next, to);
      return to;
    }
    template <int kTiles>
    static const std::byte* Values(const QueryTile& tile, int64_t block, int64_t dim) {
      std::byte* const to =
          tile.image + block % kSlots * (kKvBlockTokens / 2) * kTiles * kLineBytes;
      WidenValues<kTiles>(tile, block, dim,
                          Ahead<Int8Kv>(tile, block + kSlots, dim, dim + kTiles * kLanes), to,
                          kTiles * kLineBytes);
      return to;
    }
    template <int kTiles>
    static int64_t ValueStride(int64_t) {
      return kTiles * kLineBytes;
    }
  };

  // `next`: asked for meanwhile, as much as is read.
  static void WidenKeys(const QueryTile& tile, int64_t block, const std::byte* next,
                        std::byte* to) {
    const int64_t d = tile.args->layout.head_dim;
    const std::byte* const keys = tile.Keys<Int8Kv>(block);
    for (int64_t pair = 0; pair < d / 2; pair += 2, to += 2 * kLineBytes) {
      __builtin_prefetch(next + pair * kLineBytes / 2);
      StorePairs(to, Int8Kv::Key<0>(keys, pair), Int8Kv::Key<1>(keys, pair));
      StorePairs(to + kLineBytes, Int8Kv::Key<0>(keys, pair + 1), Int8Kv::Key<1>(keys, pair + 1));
    }
  }
  // kTiles times 16 columns from `dim` on; a pair of tokens takes `stride` bytes.
  template <int kTiles>
  static void WidenValues(const QueryTile& tile, int64_t block, int64_t dim, const std::byte* next,
                          std::byte* to, int64_t stride) {
    const int64_t d = tile.args->layout.head_dim;
    const std::byte* const values = tile.Values<Int8Kv>(block);
    for (int64_t pair = 0; pair < kKvBlockTokens / 2; ++pair, to += stride) {
      __builtin_prefetch(next + 2 * pair * d);
      __builtin_prefetch(next + (2 * pair + 1) * d);
      MOESAIC_UNROLL
      for (int64_t i = 0; i < kTiles; ++i) {
        StorePairs(to + i * kLineBytes, Int8Kv::Value<0>(values, pair, d, dim + i * kLanes),
                   Int8Kv::Value<1>(values, pair, d, dim + i * kLanes));
      }
    }
  }
  // The tile's blocks that no tile before has widened.
  static void WidenAll(const QueryTile& tile) {
    const int64_t d = tile.args->layout.head_dim;
    int64_t& end = *tile.image_end;
    for (int64_t block = MaxOf(tile.block_begin, end); block < tile.block_end; ++block) {
      const int64_t next = MinOf(block + Streamed::kSlots / 2, tile.block_end - 1);
      WidenKeys(tile, block, tile.Keys<Int8Kv>(next), Widened::Keys(tile, block));
      for (int64_t dim = 0; dim < d; dim += 2 * kLanes) {
        WidenValues<2>(tile, block, dim, tile.Values<Int8Kv>(next) + Int8Kv::kScaleBytes + dim,
                       Widened::Values<2>(tile, block, dim), Widened::ValueStride<2>(d));
      }
    }
    end = MaxOf(end, tile.block_end);
  }

  template <class Kv>
  static void AttendTileOf(const QueryTile& tile, int64_t queries) {
    const int64_t d = tile.args->layout.head_dim;
    auto* const q = reinterpret_cast<std::byte*>(tile.rounded);
    for (int64_t m = 0; m < queries; ++m) {
      for (int64_t i = 0; i < d; i += kLanes) {
        Tiles::StoreRounded(q + (m * d + i) * 2, Load(tile.queries[m].q + i));
      }
    }
    Tiles::ConfigureAttention(queries);
    int64_t block = tile.block_begin;
    for (; block + 4 <= tile.block_end; block += 4) Scores<Kv, 4>(tile, q, block);
    for (; block < tile.block_end; ++block) Scores<Kv, 1>(tile, q, block);
    for (int64_t m = 0; m < queries; ++m) Exponentials<Kv>(tile, m);
    AddAllValues<Kv>(tile, queries);
    const int64_t values = tile.value_dim();
    for (int64_t m = 0; m < queries; ++m) {
      FoldPartial(tile.partials + m * PartialFloats(values), values, tile.queries[m].total);
    }
  }

  template <int N, class F>
  MOESAIC_INLINE static void ForEach(const F& f) {
    if constexpr (N > 0) f.template operator()<0>();
    if constexpr (N > 1) f.template operator()<1>();
    if constexpr (N > 2) f.template operator()<2>();
    if constexpr (N > 3) f.template operator()<3>();
  }

  // Where a tile before has read the keys and values they are near enough.
  template <class Kv, int kLines>
  MOESAIC_INLINE static void Ask(const QueryTile& tile, const std::byte* from, int64_t stride) {
    if (!Kv::kAsks || !tile.first) return;
    MOESAIC_UNROLL
    for (int line = 0; line < kLines; ++line) __builtin_prefetch(from + line * stride);
  }

  // Scores of N blocks from `block` on, neither scaled nor masked.
  template <class Kv, int N>
  static void Scores(const QueryTile& tile, const std::byte* q, int64_t block) {
    const int64_t d = tile.args->layout.head_dim;
    const std::byte* keys[N];
    const std::byte* next[N];
    for (int b = 0; b < N; ++b) {
      const int64_t then = block + N + b;
      keys[b] = Kv::Keys(tile, block + b);
      next[b] = then < tile.block_end
                    ? tile.Keys<Bf16Kv>(then)
                    : tile.ValuesOrNextKeys<Bf16Kv>(tile.block_begin + then - tile.block_end);
    }
    ForEach<N>([]<int kSum>() { Tiles::ZeroSums<kSum / 2, kSum % 2>(); });
    for (int64_t step = 0; step < d / 32; ++step) {
      Tiles::LoadX<0>(q + step * kLineBytes, d * 2);
      ForEach<N>([&]<int kSum>() {
        Tiles::LoadWeights<0>(keys[kSum] + step * 16 * kLineBytes);
        Ask<Kv, 16>(tile, next[kSum] + step * 16 * kLineBytes, kLineBytes);
        Tiles::DotKeys<kSum>();
      });
    }
    float* const out = tile.weights + (block - tile.block_begin) * kKvBlockTokens;
    ForEach<N>([&]<int kSum>() {
      Tiles::StoreSums<kSum / 2, kSum % 2>(out + kSum * kKvBlockTokens, kWeightStride);
    });
  }

  // Scores to exp(score - max) in bf16, 0 where masked; the maximum and the sum (of the
  // exponentials before they are rounded) to the partial.
  template <class Kv>
  static void Exponentials(const QueryTile& tile, int64_t m) {
    const int64_t d = tile.value_dim();
    const int64_t tokens = (tile.block_end - tile.block_begin) * kKvBlockTokens;
    const Query& query = tile.queries[m];
    float* const weights = tile.weights + m * kAttentionChunkTokens;
    const Vec16 scale = Set(tile.args->scale);
    const Vec16 masked = Set(-kInfinity);
    Vec16 max = masked;
    for (int64_t i = 0; i < tokens; i += kLanes) {
      const int64_t first = tile.block_begin * kKvBlockTokens + i;
      Vec16 score = Load(weights + i);
      if constexpr (Kv::kScaled) {
        score = Mul(score, Load(tile.Keys<Int8Kv>(first / kKvBlockTokens)));
        Store(weights + i, score);
      }
      if (first < tile.begin || first + kLanes > tile.end) {
        const int64_t from = MinOf(MaxOf<int64_t>(query.begin - first, 0), kLanes);
        const int64_t to = MinOf(MaxOf<int64_t>(query.end - first, 0), kLanes);
        score = KeepRange(score, from, to, masked);
        Store(weights + i, score);
      }
      max = Max(Mul(score, scale), max);
    }
    float* const partial = tile.partials + m * PartialFloats(d);
    for (int64_t i = 0; i <= d; i += kLanes) Store(partial + i, Zero());
    partial[d] = MaxLanes(max);
    const Vec16 shift = Set(-ExpShift(partial[d]));
    Vec16 sum = Zero();
    for (int64_t i = 0; i < tokens; i += kLanes) {
      Vec16 e = Exp(Fma(Load(weights + i), scale, shift));
      sum = Add(sum, e);
      if constexpr (Kv::kScaled) {  // what is masked has no scale
        const Vec16 scales = Load(tile.Values<Int8Kv>(tile.block_begin + i / kKvBlockTokens));
        e = SelectLess(Zero(), e, Mul(e, scales), e);
      }
      // Behind what is read.
      Tiles::StoreRounded(reinterpret_cast<std::byte*>(weights) + i * 2, e);
    }
    partial[d + 1] = SumLanes(sum);
  }

  // All queries see all of the block.
  MOESAIC_INLINE static bool Whole(const QueryTile& tile, int64_t block) {
    const int64_t first = block * kKvBlockTokens;
    return tile.begin <= first && first + kKvBlockTokens <= tile.end;
  }

  // Two bf16 in a lane; 0 times what is infinite or NaN is NaN.
  static bool Finite(const std::byte* values, int64_t d) {
    Vec16 sum = Zero();
    for (int64_t line = 0; line < kKvBlockTokens * d / 32; ++line) {
      const std::byte* const at = values + line * kLineBytes;
      sum = Add(sum, Add(Mul(LoadEven(at), Zero()), Mul(LoadOdd(at), Zero())));
    }
    return SumLanes(sum) == 0.0f;
  }

  template <class Kv>
  static void AddAllValues(const QueryTile& tile, int64_t queries) {
    if constexpr (Kv::kScaled) {
      AddValues<Kv>(tile, 0, tile.block_begin, tile.block_end, nullptr);
    } else {
      AddSeenValues<Kv>(tile, queries);
    }
  }
  template <class Kv>
  static void AddSeenValues(const QueryTile& tile, int64_t queries) {
    const int64_t d = tile.value_dim();
    int64_t block = tile.block_begin;
    while (block < tile.block_end) {
      int64_t end = block;
      while (end < tile.block_end &&
             (Whole(tile, end) || Finite(Kv::template Values<1>(tile, end, 0), d))) {
        ++end;
      }
      if (end > block) AddValues<Kv>(tile, 0, block, end, nullptr);
      if (end < tile.block_end) AddSeen<Kv>(tile, queries, end++);
      block = end;
    }
  }

  // A block of which not all may be touched, query by query.
  template <class Kv>
  static void AddSeen(const QueryTile& tile, int64_t queries, int64_t block) {
    const int64_t d = tile.value_dim();
    const std::byte* const values = Kv::template Values<1>(tile, block, 0);
    alignas(kLineBytes) std::byte seen[kKvBlockTokens * kMostTiledLatent * 2];
    Tiles::ConfigureAttention(1);
    for (int64_t m = 0; m < queries; ++m) {
      for (int64_t token = 0; token < kKvBlockTokens; ++token) {
        const int64_t position = block * kKvBlockTokens + token;
        const bool sees = tile.queries[m].begin <= position && position < tile.queries[m].end;
        const int64_t row = token / 2 * d * 4 + token % 2 * 2;
        for (int64_t i = 0; i < d; ++i) {
          StoreAs(seen + row + i * 4, sees ? LoadAs<uint16_t>(values + row + i * 4) : uint16_t{0});
        }
      }
      AddValues<Kv>(tile, m, block, block + 1, seen);
    }
    Tiles::ConfigureAttention(queries);
  }

  // What is read a while after the values of a block: these columns of a later block, the next
  // columns (from `next_dim` on) of the first ones, the next keys.
  template <class Cached>
  MOESAIC_INLINE static const std::byte* Ahead(const QueryTile& tile, int64_t block, int64_t dim,
                                               int64_t next_dim) {
    constexpr int64_t kDimBytes = Cached::kBytes == 1 ? 1 : 2 * Cached::kBytes;
    constexpr int64_t kScales = Cached::kScaleBytes;
    if (block < tile.block_end) return tile.Values<Cached>(block) + kScales + dim * kDimBytes;
    if (next_dim == tile.args->layout.head_dim) return tile.ValuesOrNextKeys<Cached>(block);
    const int64_t over = block - tile.block_end;
    return tile.Values<Cached>(MinOf(tile.block_begin + over, tile.block_end - 1)) + kScales +
           next_dim * kDimBytes;
  }

  // partials += weights * values of blocks [begin, end), from query m on; `values`: of the first
  // block, where they are not in the cache.
  template <class Kv>
  static void AddValues(const QueryTile& tile, int64_t m, int64_t begin, int64_t end,
                        const std::byte* values) {
    const int64_t d = tile.value_dim();
    int64_t dim = 0;
    for (; dim + kTiledDims <= d; dim += kTiledDims) {
      AddColumns<Kv, 4>(tile, m, begin, end, values, dim);
    }
    if (dim < d) AddColumns<Kv, 2>(tile, m, begin, end, values, dim);
  }

  template <class Kv, int N>
  static void AddColumns(const QueryTile& tile, int64_t m, int64_t begin, int64_t end,
                         const std::byte* values, int64_t dim) {
    const int64_t d = tile.value_dim();
    const int64_t stride = PartialFloats(d);
    const int64_t value_stride = Kv::template ValueStride<N>(d);
    const int64_t ahead = kAheadBytes / (8 * N * kLineBytes);
    float* const partial = tile.partials + m * stride + dim;
    const auto* weights =
        reinterpret_cast<const std::byte*>(tile.weights + m * kAttentionChunkTokens) +
        (begin - tile.block_begin) * kKvBlockTokens * 2;
    ForEach<N>([&]<int kSum>() {
      Tiles::LoadSums<kSum / 2, kSum % 2>(partial + kSum * kLanes, stride * 4);
    });
    for (int64_t block = begin; block < end; ++block, weights += kKvBlockTokens * 2) {
      const std::byte* const from =
          values != nullptr ? values + dim * 4 : Kv::template Values<N>(tile, block, dim);
      const std::byte* const next = Ahead<Bf16Kv>(tile, block + ahead, dim, dim + N * kLanes);
      Tiles::LoadX<1>(weights, kWeightStride);
      ForEach<N>([&]<int kSum>() {
        Tiles::LoadWeights<1>(from + kSum * kLineBytes, value_stride);
        Ask<Kv, 8>(tile, next + kSum * kLineBytes, d * 4);
        Tiles::DotValues<kSum>();
      });
    }
    ForEach<N>([&]<int kSum>() {
      Tiles::StoreSums<kSum / 2, kSum % 2>(partial + kSum * kLanes, stride * 4);
    });
  }
};

// `others`: of class kF32, for what does not fit.
inline void AmxAttendChunks(const CpuKernels& others, const AttendArgs& args, int64_t chunk_begin,
                            int64_t chunk_end, float* partials, int64_t chunk_stride,
                            float* scratch) {
  if (!AmxAttention::Fits(args.layout)) {
    return others.attend_chunks(args, chunk_begin, chunk_end, partials, chunk_stride, scratch);
  }
  AttendChunksBy<AmxAttention>(args, chunk_begin, chunk_end, partials, chunk_stride, scratch);
  Tiles::Release();
}

}  // namespace
}  // namespace moesaic
