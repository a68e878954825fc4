// Products of integer activations with integer weights. Included after Vec16, Ints16 (ints_*.h) and
// math.h.
//
// The products of a group of 128 inputs are summed exactly, in integers; the sum of a group is
// converted, multiplied by the scale of the weights times that of the activations and added in f32,
// groups ascending. So every instruction set, tile and block of groups gives the same bits. The
// sums are below 2^24, so that converting them is exact, too.
//
// Halves of int4's bytes become the bytes of int8 on the way into registers, or in memory for
// several tiles, or are multiplied as they are (Halves::kMostRows).
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

// Lines of each panel that a tile prefetches while it runs, evenly over its subgroups: `lines` of
// them from `offset` on, those from `jump_line` on `jump` bytes further.
struct LinePrefetch {
  int64_t offset;
  int64_t lines;
  int64_t jump_line;
  int64_t jump;
};

// Groups [begin, end) of rows of k inputs, begin even.
struct GroupRange {
  int64_t k;
  int64_t begin;
  int64_t end;
  int64_t subgroups(int64_t group) const {
    return MinOf(CeilDiv(k - group * kQuantGroup, kQuantSubgroup), kSubgroups);
  }
  int64_t subgroups() const {
    return MinOf(CeilDiv(k, kQuantSubgroup), end * kSubgroups) - begin * kSubgroups;
  }
};

template <int M, int P>
MOESAIC_INLINE void DotFour(const int8_t* const (&x)[M], int64_t i, const WeightBytes (&weights)[P],
                            Ints16 (&dots)[M][P]) {
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const FourBytes four = LoadFour(x[m] + i);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) dots[m][p] = DotAdd(dots[m][p], weights[p], four);
  }
}

// Adds a subgroup of int8: w points to its lines, x to its first value.
template <int M, int P>
MOESAIC_INLINE void AddSubgroup(const int8_t* const (&x)[M], const std::byte* const (&w)[P],
                                Ints16 (&dots)[M][P]) {
  constexpr auto kLines = static_cast<int>(SubgroupLines(WeightType::kInt8));
  MOESAIC_UNROLL
  for (int line = 0; line < kLines; ++line) {
    WeightBytes weights[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) weights[p] = Bytes(w[p] + line * kLineBytes);
    DotFour<M, P>(x, 4 * line, weights, dots);
  }
}

// What sums of a group of int4 start at where halves are multiplied as they are: what the halves
// stand above their weights.
template <int M, int P, class H = Halves>
MOESAIC_INLINE void StartHalves(const int8_t* const (&x)[M], const Multipliers (&multipliers)[P],
                                Ints16 (&dots)[M][P]) {
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const auto sums = H::SumsOf(x[m]);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) dots[m][p] = H::StartOfGroup(multipliers[p], sums);
  }
}

// Adds a subgroup of it.
template <int M, int P, class H = Halves>
MOESAIC_INLINE void AddHalves(const int8_t* const (&x)[M], const std::byte* const (&w)[P],
                              const Multipliers (&multipliers)[P], int64_t subgroup,
                              Ints16 (&dots)[M][P]) {
  constexpr auto kLines = static_cast<int>(SubgroupLines(WeightType::kInt4));
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    typename H::Products products[M];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) products[m] = H::Zero();
    MOESAIC_UNROLL
    for (int line = 0; line < kLines; ++line) {
      const auto low = H::Low(w[p] + line * kLineBytes);
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) {
        products[m] = H::AddLow(products[m], low, LoadFour(x[m] + 8 * line));
      }
      const auto high = H::High(w[p] + line * kLineBytes);
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) {
        products[m] = H::AddHigh(products[m], high, LoadFour(x[m] + 8 * line + 4));
      }
    }
    const auto factors = H::FactorsOf(multipliers[p], subgroup);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) dots[m][p] = H::Add(dots[m][p], products[m], factors);
  }
}

// Of int4, with the multipliers of the group.
template <int M, int P>
MOESAIC_INLINE void AddSubgroup(const int8_t* const (&x)[M], const std::byte* const (&w)[P],
                                const Multipliers (&multipliers)[P], int64_t subgroup,
                                Ints16 (&dots)[M][P]) {
  HalfScale scales[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) scales[p] = ScaleOfHalves(multipliers[p], subgroup);
  constexpr auto kLines = static_cast<int>(SubgroupLines(WeightType::kInt4));
  MOESAIC_UNROLL
  for (int line = 0; line < kLines; ++line) {
    WeightBytes weights[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) weights[p] = LowHalves(w[p] + line * kLineBytes, scales[p]);
    DotFour<M, P>(x, 8 * line, weights, dots);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) weights[p] = HighHalves(w[p] + line * kLineBytes, scales[p]);
    DotFour<M, P>(x, 8 * line + 4, weights, dots);
  }
}

// The panels of a tile: where its groups start, and what prefetching counts from.
struct QuantPanels {
  const std::byte* const* weights;
  const std::byte* const* ahead;
};

// sums[(p * sum_rows + m) * 16 ..] over the groups of the range; they start at zero when it begins
// with group 0.
template <WeightType kType, int M, int P>
void QuantTile(const std::byte* const* x_rows, QuantPanels panels, const GroupRange& range,
               const LinePrefetch& prefetch, float* sums_memory, int64_t sum_rows) {
  // Of a tile as large as this the registers hold the sums of a group alone.
  constexpr bool kWait = QuantSumsWait(M, P);
  constexpr bool kHalves = kType == WeightType::kInt4 && M <= Halves::kMostRows;
  Vec16 sums[M][P];
  if constexpr (!kWait) {
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        sums[m][p] = range.begin == 0 ? Zero() : Load(sums_memory + (p * sum_rows + m) * kLanes);
      }
    }
  }
  const int64_t all_subgroups = range.subgroups();
  int64_t due = 0;  // lines to be prefetched by now, times all_subgroups
  int64_t fetched = 0;
  for (int64_t group = range.begin; group < range.end; ++group) {
    const int8_t* x[M];
    Multipliers multipliers[P];
    const std::byte* w[P];
    Ints16 dots[M][P];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      x[m] = reinterpret_cast<const int8_t*>(x_rows[m]) + group * kQuantGroup;
      if constexpr (!kHalves) {
        const auto* of =
            reinterpret_cast<const ActivationScale*>(x_rows[m] + ActivationScalesOffset(range.k));
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) dots[m][p] = StartOfGroup(of[group].correction);
      }
    }
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      w[p] = panels.weights[p] + GroupOffset(kType, group - range.begin);
      if constexpr (kType == WeightType::kInt4) multipliers[p] = LoadMultipliers(w[p]);
      w[p] += MultiplierLines(kType) * kLineBytes;
    }
    if constexpr (kHalves) StartHalves<M, P>(x, multipliers, dots);
    const int64_t subgroups = range.subgroups(group);
    for (int64_t subgroup = 0; subgroup < subgroups; ++subgroup) {
      for (due += prefetch.lines; fetched * all_subgroups < due; ++fetched) {
        const int64_t at = prefetch.offset + fetched * kLineBytes +
                           (fetched >= prefetch.jump_line ? prefetch.jump : 0);
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) PrefetchLevel2(panels.ahead[p] + at);
      }
      if constexpr (kType == WeightType::kInt8) {
        AddSubgroup<M, P>(x, w, dots);
      } else if constexpr (kHalves) {
        AddHalves<M, P>(x, w, multipliers, subgroup, dots);
      } else {
        AddSubgroup<M, P>(x, w, multipliers, subgroup, dots);
      }
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) x[m] += kQuantSubgroup;
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) w[p] += SubgroupLines(kType) * kLineBytes;
    }
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      const Vec16 scale = LoadF16(panels.weights[p] + ScalesOffset(kType, group - range.begin));
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) {
        const auto* of =
            reinterpret_cast<const ActivationScale*>(x_rows[m] + ActivationScalesOffset(range.k));
        const Vec16 dot = ToFloats(dots[m][p]);
        const Vec16 of_both = Mul(scale, Set(of[group].scale));
        if constexpr (kWait) {
          float* const sum = sums_memory + (p * sum_rows + m) * kLanes;
          Store(sum, Fma(dot, of_both, group == 0 ? Zero() : Load(sum)));
        } else {
          sums[m][p] = Fma(dot, of_both, sums[m][p]);
        }
      }
    }
  }
  if constexpr (!kWait) {
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) Store(sums_memory + (p * sum_rows + m) * kLanes, sums[m][p]);
    }
  }
}

// Rows of the tallest tile of a type. Rows beyond those of int4's are widened in memory and take
// int8's.
constexpr int QuantTileRowsOf(WeightType type) {
  return type == WeightType::kInt4 ? kInt4TileRows : kQuantTileRows;
}

// Runs tiles of M rows over `count` panels.
template <WeightType kType, int M>
void QuantTileRow(const std::byte* const* x, QuantPanels w, int64_t count, const GroupRange& range,
                  const LinePrefetch& prefetch, float* sums, int64_t sum_rows) {
  constexpr int kPanels = QuantTilePanels(M);
  int64_t p = 0;
  const int64_t stride = sum_rows * kLanes;
  for (; p + kPanels <= count; p += kPanels) {
    QuantTile<kType, M, kPanels>(x, {w.weights + p, w.ahead + p}, range, prefetch,
                                 sums + p * stride, sum_rows);
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= count; p += 2) {
      QuantTile<kType, M, 2>(x, {w.weights + p, w.ahead + p}, range, prefetch, sums + p * stride,
                             sum_rows);
    }
  }
  for (; p < count; ++p) {
    QuantTile<kType, M, 1>(x, {w.weights + p, w.ahead + p}, range, prefetch, sums + p * stride,
                           sum_rows);
  }
}

template <WeightType kType, int M = QuantTileRowsOf(kType)>
void QuantTileRows(int64_t m, const std::byte* const* x, QuantPanels w, int64_t panels,
                   const GroupRange& range, const LinePrefetch& prefetch, float* sums,
                   int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) {
      return QuantTileRows<kType, M - 1>(m, x, w, panels, range, prefetch, sums, sum_rows);
    }
  }
  QuantTileRow<kType, M>(x, w, panels, range, prefetch, sums, sum_rows);
}

// The groups of a range of an int4 panel, which points to the first of them, as those of an int8
// panel. Subgroups are filled up to an even number, as tiles take them. Calls between() before
// each.
template <class Between>
MOESAIC_INLINE void WidenGroups(const std::byte* panel, const GroupRange& range, std::byte* to,
                                const Between& between) {
  for (int64_t group = 0; group < range.end - range.begin; ++group) {
    if (group % 2 == 0) {
      __builtin_memcpy(to + ScalesOffset(WeightType::kInt8, group),
                       panel + ScalesOffset(WeightType::kInt4, group), kLineBytes);
    }
    const std::byte* from = panel + GroupOffset(WeightType::kInt4, group);
    std::byte* out = to + GroupOffset(WeightType::kInt8, group);
    const Multipliers multipliers = LoadMultipliers(from);
    const int64_t subgroups = range.subgroups(range.begin + group);
    for (int64_t subgroup = 0; subgroup < subgroups; ++subgroup) {
      between();
      const HalfScale scale = ScaleOfHalves(multipliers, subgroup);
      for (int64_t line = 0; line < SubgroupLines(WeightType::kInt4); ++line) {
        from += kLineBytes;
        WidenLine(from, scale, out);
        out += 2 * kLineBytes;
      }
    }
    if (subgroups % 2 == 1) {
      __builtin_memset(out, 0, SubgroupLines(WeightType::kInt8) * kLineBytes);
    }
  }
}

// Products of integer weights for MatmulOf and GateUpOf.
template <WeightType kType>
struct QuantProduct : PlainRows<48> {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
  static constexpr int64_t kTileRows = kQuantTileRows;
  // One tile's share of a block of groups is half of a level 1 cache. Measured: 6 x 2 rows and
  // panels against 4 x 3, 3 x 4 and 12 x 1, and 8 x 2, which is as fast.
  static constexpr int64_t kLargeColumns = 4;
  static constexpr int64_t kMaxColumns = kLargeColumns;
  using PlainRows<48>::kChunkRows;
  static constexpr int64_t kBlockGroups = 4;
  static_assert(kChunkRows % kTileRows == 0);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t, const PanelShape&) { return kLargeColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    if (m <= kStraightRows || kDirect) {
      const int64_t ahead = MinOf(kLinesAhead, shape.lines);
      const LinePrefetch prefetch = {.offset = ahead * kLineBytes,
                                     .lines = shape.lines,
                                     .jump_line = shape.lines - ahead,
                                     .jump = next_bytes - shape.lines * kLineBytes};
      const GroupRange all = {shape.k, 0, CeilDiv(shape.k, kQuantGroup)};
      if (m <= kStraightRows) {
        return QuantTileRows<kType>(m, x, {w, w}, columns, all, prefetch, sums, m);
      }
      const int64_t tiles = CeilDiv(m, kStraightRows);
      for (int64_t c = 0; c < columns; c += kTilePanels) {
        const int64_t count = MinOf(columns - c, kTilePanels);
        LinePrefetch of_tile = prefetch;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t first = tile * m / tiles;
          QuantTileRows<kType>((tile + 1) * m / tiles - first, x + first, {w + c, w + c}, count,
                               all, of_tile, sums + (c * m + first) * kLanes, m);
          of_tile.lines = 0;  // the first one has brought the panels into a cache
        }
      }
      return;
    }
    for (int64_t c = 0; c < columns; c += kTilePanels) {
      TileColumns(x, m, w + c, MinOf(columns - c, kTilePanels), shape, next_bytes,
                  sums + c * m * kLanes);
    }
  }

 private:
  static constexpr int64_t kTilePanels = QuantTilePanels(kTileRows);
  static constexpr int64_t kStraightRows = QuantTileRowsOf(kType);
  static constexpr bool kDirect = kType == WeightType::kInt4 && Halves::kMostRows > kStraightRows;
  static constexpr int64_t kBlockBytes = kBlockGroups / 2 * PairBytes(kType);
  // Distance when weights are read once: in the level 2 cache, as one row waits for its memory.
  // Prefetches into level 1, which has few misses in flight, took 1.25 times as long (Zen 4).
  static constexpr int64_t kLinesAhead = 16 * SubgroupLines(kType);
  // One panel's share of a block of int4's groups, widened.
  static constexpr int64_t kWideBytes = kBlockGroups / 2 * PairBytes(WeightType::kInt8);

  // As many panels as a tile has.
  static void TileColumns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                          int64_t columns, const PanelShape& shape, int64_t next_bytes,
                          float* sums) {
    const int64_t tiles = CeilDiv(m, kTileRows);
    const int64_t groups = CeilDiv(shape.k, kQuantGroup);
    constexpr bool kWiden = kType == WeightType::kInt4;
    alignas(64) std::byte widened[kWiden ? kTilePanels * kWideBytes : 1];
    for (int64_t begin = 0; begin < groups; begin += kBlockGroups) {
      const GroupRange range = {shape.k, begin, MinOf(begin + kBlockGroups, groups)};
      const int64_t offset = begin / kBlockGroups * kBlockBytes;
      const std::byte* block[kTilePanels];
      for (int64_t c = 0; c < columns; ++c) {
        block[c] = w[c] + offset;
        if constexpr (kWiden) {
          WidenGroups(block[c], range, widened + c * kWideBytes, [] {});
          block[c] = widened + c * kWideBytes;
        }
      }
      // The tiles share the work of prefetching the next block.
      const int64_t next = range.end < groups ? offset + kBlockBytes : next_bytes;
      constexpr int64_t kBlockLines = kBlockBytes / kLineBytes;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile * m / tiles;
        const int64_t last = (tile + 1) * m / tiles;
        const int64_t first_line = tile * kBlockLines / tiles;
        const int64_t end_line = (tile + 1) * kBlockLines / tiles;
        const LinePrefetch prefetch = {.offset = next + first_line * kLineBytes,
                                       .lines = end_line - first_line,
                                       .jump_line = end_line - first_line,
                                       .jump = 0};
        QuantTileRows<WeightType::kInt8>(last - first, x + first, {block, w}, columns, range,
                                         prefetch, sums + first * kLanes, m);
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
