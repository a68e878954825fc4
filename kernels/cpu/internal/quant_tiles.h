// Products of integer activations with integer weights. Included after Vec16, Ints16 (ints_*.h) and
// math.h.
//
// The products of a group of 32 inputs are summed exactly, in integers; the sum of a group is
// converted, multiplied by the scale of the weights times that of the activations and added in f32,
// groups ascending. So every instruction set, tile and block of groups gives the same bits.
//
// Halves of int4's bytes are taken times 16, in the upper half of a byte, which makes them unsigned
// bytes around 128 as int8's are; the sums of an output are divided by 16 at the end, exactly.
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

// Lines of one group. A pair of groups has a line of scales before it.
template <WeightType kType>
constexpr int64_t kGroupLines = kType == WeightType::kInt8 ? 8 : 4;
template <WeightType kType>
constexpr int64_t kPairBytes = (1 + 2 * kGroupLines<kType>)*kLineBytes;
constexpr int64_t kScaleBytes = kLineBytes / 2;  // of one group

// What a tile prefetches of each panel while it works on a pair of groups: `lines` lines, which
// begin `offset` bytes into the panel for the first pair, `step` further for each pair after it,
// and `jump` further still from pair `jump_pair` on.
struct PairPrefetch {
  int64_t offset;
  int64_t step;
  int64_t lines;
  int64_t jump_pair;
  int64_t jump;
};

template <int M, int P>
MOESAIC_INLINE void DotFour(const ActivationGroup* const (&x)[M], int i,
                            const WeightBytes (&weights)[P], Ints16 (&dots)[M][P]) {
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const FourBytes four = LoadFour(x[m]->values + i);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) dots[m][p] = DotAdd(dots[m][p], weights[p], four);
  }
}

// Adds one group: w points to its lines, scales to its scales.
template <WeightType kType, int M, int P>
MOESAIC_INLINE void AddGroup(const ActivationGroup* const (&x)[M], const std::byte* const (&w)[P],
                             const std::byte* const (&scales)[P], Vec16 (&sums)[M][P]) {
  Ints16 dots[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) dots[m][p] = StartOfGroup(x[m]->correction);
  }
  MOESAIC_UNROLL
  for (int line = 0; line < kGroupLines<kType>; ++line) {
    WeightBytes weights[P];
    if constexpr (kType == WeightType::kInt8) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) weights[p] = Bytes(w[p] + line * kLineBytes);
      DotFour<M, P>(x, 4 * line, weights, dots);
    } else {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) weights[p] = LowHalves(w[p] + line * kLineBytes);
      DotFour<M, P>(x, 8 * line, weights, dots);
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) weights[p] = HighHalves(w[p] + line * kLineBytes);
      DotFour<M, P>(x, 8 * line + 4, weights, dots);
    }
  }
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    const Vec16 scale = LoadF16(scales[p]);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      sums[m][p] = Fma(ToFloats(dots[m][p]), Mul(scale, Set(x[m]->scale)), sums[m][p]);
    }
  }
}

// Distance when weights are read once.
constexpr int64_t kPairsAhead = 2;

// The panels of a tile: where the weights of its groups start, and what `offset` counts from.
struct QuantPanels {
  const std::byte* const* weights;
  const std::byte* const* ahead;
};

// sums[(p * sum_rows + m) * 16 ..] over groups [begin, end) of x, begin even; the sums start at
// zero when begin is 0, and are scaled by `factor` at the end.
template <WeightType kType, int M, int P>
void QuantTile(const std::byte* const* x_rows, QuantPanels panels, int64_t begin, int64_t end,
               const PairPrefetch& prefetch, float factor, float* sums_memory, int64_t sum_rows) {
  const ActivationGroup* x[M];
  const std::byte* w[P];
  const std::byte* ahead[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    x[m] = reinterpret_cast<const ActivationGroup*>(x_rows[m]) + begin;
  }
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    w[p] = panels.weights[p];
    ahead[p] = panels.ahead[p] + prefetch.offset;
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      sums[m][p] = begin == 0 ? Zero() : Load(sums_memory + (p * sum_rows + m) * kLanes);
    }
  }
  for (int64_t group = begin; group < end; group += 2) {
    const int64_t jump = (group - begin) / 2 >= prefetch.jump_pair ? prefetch.jump : 0;
    for (int64_t line = 0; line < prefetch.lines; ++line) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) __builtin_prefetch(ahead[p] + jump + line * kLineBytes);
    }
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) ahead[p] += prefetch.step;
    MOESAIC_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (half == 1 && group + 1 == end) break;
      const ActivationGroup* x_group[M];
      const std::byte* lines[P];
      const std::byte* scales[P];
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) x_group[m] = x[m] + half;
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        lines[p] = w[p] + (1 + half * kGroupLines<kType>)*kLineBytes;
        scales[p] = w[p] + half * kScaleBytes;
      }
      AddGroup<kType, M, P>(x_group, lines, scales, sums);
    }
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) x[m] += 2;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) w[p] += kPairBytes<kType>;
  }
  const Vec16 factors = Set(factor);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      Store(sums_memory + (p * sum_rows + m) * kLanes, Mul(sums[m][p], factors));
    }
  }
}

// Runs tiles of M rows over `panels` panels.
template <WeightType kType, int M>
void QuantTileRow(const std::byte* const* x, QuantPanels w, int64_t panels, int64_t begin,
                  int64_t end, const PairPrefetch& prefetch, float factor, float* sums,
                  int64_t sum_rows) {
  constexpr int kPanels = QuantTilePanels(M);
  int64_t p = 0;
  const int64_t stride = sum_rows * kLanes;
  for (; p + kPanels <= panels; p += kPanels) {
    QuantTile<kType, M, kPanels>(x, {w.weights + p, w.ahead + p}, begin, end, prefetch, factor,
                                 sums + p * stride, sum_rows);
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= panels; p += 2) {
      QuantTile<kType, M, 2>(x, {w.weights + p, w.ahead + p}, begin, end, prefetch, factor,
                             sums + p * stride, sum_rows);
    }
  }
  for (; p < panels; ++p) {
    QuantTile<kType, M, 1>(x, {w.weights + p, w.ahead + p}, begin, end, prefetch, factor,
                           sums + p * stride, sum_rows);
  }
}

template <WeightType kType, int M = kQuantTileRows>
void QuantTileRows(int64_t m, const std::byte* const* x, QuantPanels w, int64_t panels,
                   int64_t begin, int64_t end, const PairPrefetch& prefetch, float factor,
                   float* sums, int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) {
      return QuantTileRows<kType, M - 1>(m, x, w, panels, begin, end, prefetch, factor, sums,
                                         sum_rows);
    }
  }
  QuantTileRow<kType, M>(x, w, panels, begin, end, prefetch, factor, sums, sum_rows);
}

// Groups of an int4 panel as those of an int8 panel with weights times 16.
MOESAIC_INLINE void WidenGroups(const std::byte* from, int64_t groups, std::byte* to) {
  for (int64_t group = 0; group < groups; group += 2) {
    __builtin_memcpy(to, from, kLineBytes);
    const int64_t lines = MinOf<int64_t>(groups - group, 2) * kGroupLines<WeightType::kInt4>;
    for (int64_t line = 0; line < lines; ++line) {
      WidenLine(from + (1 + line) * kLineBytes, to + (1 + 2 * line) * kLineBytes);
    }
    from += kPairBytes<WeightType::kInt4>;
    to += kPairBytes<WeightType::kInt8>;
  }
}

// Products of integer weights for MatmulOf and GateUpOf.
template <WeightType kType>
struct QuantProduct : PlainRows<48> {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
  static constexpr int64_t kTileRows = kQuantTileRows;
  // Four panels, as gate and up of a group of activations need; of those, what one tile has at a
  // time: its share of a block of groups is half of a level 1 cache. Measured: 16 groups against 8
  // and 32, and 6 x 2 rows and panels against 4 x 3, 3 x 4 and 12 x 1.
  static constexpr int64_t kLargeColumns = 4;
  static constexpr int64_t kMaxColumns = kLargeColumns;
  using PlainRows<48>::kChunkRows;
  static constexpr int64_t kBlockGroups = 16;
  static_assert(kChunkRows % kTileRows == 0);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t) { return kLargeColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, int64_t lines, int64_t next_bytes, float* sums) {
    const int64_t pairs = CeilDiv(lines, kPairLines);
    const int64_t groups = 2 * pairs - (lines < pairs * kPairLines ? 1 : 0);
    if (m <= kTileRows) {
      const PairPrefetch prefetch = {.offset = kPairsAhead * kPairBytes<kType>,
                                     .step = kPairBytes<kType>,
                                     .lines = kPairLines,
                                     .jump_pair = pairs - kPairsAhead,
                                     .jump = next_bytes - pairs * kPairBytes<kType>};
      QuantTileRows<kType>(m, x, {w, w}, columns, 0, groups, prefetch, kFactor, sums, m);
      return;
    }
    for (int64_t c = 0; c < columns; c += kTilePanels) {
      TileColumns(x, m, w + c, MinOf(columns - c, kTilePanels), groups, next_bytes,
                  sums + c * m * kLanes);
    }
  }

 private:
  static constexpr int64_t kTilePanels = QuantTilePanels(kTileRows);
  static constexpr float kFactor = kType == WeightType::kInt8 ? 1.0f : 1.0f / 16;
  static constexpr int64_t kPairLines = kPairBytes<kType> / kLineBytes;
  // One panel's share of a block of int4's groups, widened.
  static constexpr int64_t kWideBytes = kBlockGroups / 2 * kPairBytes<WeightType::kInt8>;

  // As many panels as a tile has.
  static void TileColumns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                          int64_t columns, int64_t groups, int64_t next_bytes, float* sums) {
    const int64_t tiles = CeilDiv(m, kTileRows);
    // Fewer tiles take the halves apart themselves, each for itself.
    const bool widen = kType == WeightType::kInt4 && tiles > 2;
    alignas(64) std::byte widened[kType == WeightType::kInt4 ? kTilePanels * kWideBytes : 1];
    for (int64_t begin = 0; begin < groups; begin += kBlockGroups) {
      const int64_t end = MinOf(begin + kBlockGroups, groups);
      const std::byte* block[kTilePanels];
      for (int64_t c = 0; c < columns; ++c) {
        block[c] = w[c] + begin / 2 * kPairBytes<kType>;
        if (widen) {
          WidenGroups(block[c], end - begin, widened + c * kWideBytes);
          block[c] = widened + c * kWideBytes;
        }
      }
      const float factor = end == groups ? kFactor : 1.0f;
      // The tiles share the work of prefetching the next block.
      const int64_t next = end < groups ? end / 2 * kPairBytes<kType> : next_bytes;
      const int64_t share = CeilDiv(kPairLines, tiles);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile * m / tiles;
        const int64_t last = (tile + 1) * m / tiles;
        const PairPrefetch prefetch = {.offset = next + tile * share * kLineBytes,
                                       .step = kPairBytes<kType>,
                                       .lines = share,
                                       .jump_pair = 0,
                                       .jump = 0};
        (widen ? QuantTileRows<WeightType::kInt8>
               : QuantTileRows<kType>)(last - first, x + first, {block, w}, columns, begin, end,
                                       prefetch, factor, sums + first * kLanes, m);
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
