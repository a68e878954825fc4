// Products on the tile registers of AMX. Included after Vec16, Ints16, Tiles and quant_tiles.h.
//
// A line of a packed panel is a row of a tile of weights as it is: pairs of bf16 or four bytes of
// 16 outputs. Activations are copied into tiles first, because gathered rows have no common stride.
// Rows are spread over tiles of equal height, so that few rows cost few cycles; the last tile is
// filled up with zeros.
//
// bf16: a step is 32 inputs; the instruction sums the even and the odd ones of a step in two chains
// of multiply-adds, adds the two and then adds that to the sum (Intel SDM, TDPBF16PS), with
// denormals taken for zero. That order is the class kAmxBf16; rows never mix, so that the bits of a
// row depend on nothing else. There is no other path for few rows: a step of one row reads a KiB of
// weights in 16 cycles, several times as fast as memory gives them.
//
// Integers: a step is 64 inputs, two of them a group, whose sums are exact. Groups are multiplied
// and stored, then scaled in vectors as quant_tiles.h does.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

constexpr int64_t kAmxRows = 16;  // of a tile at most

// Where the rows of a product lie in tiles of equal height. The last tile begins early enough to be
// full; what it shares with the one before is computed twice, to the same bits.
struct AmxRows {
  explicit AmxRows(int64_t rows)
      : m(rows), tiles(CeilDiv(rows, kAmxRows)), tile_rows(CeilDiv(rows, tiles)) {}
  int64_t begin(int64_t tile) const { return MinOf(tile * tile_rows, m - tile_rows); }

  int64_t m;
  int64_t tiles;
  int64_t tile_rows;
};

// Calls run.operator()<R, P>(tile, column) for blocks of R tiles of rows and P panels that cover
// all of them, every panel in one stretch.
template <class Run>
MOESAIC_INLINE void ForAmxBlocks(int64_t tiles, int64_t column, int64_t columns, const Run& run) {
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    if (tile + 2 <= tiles) {
      columns == 2 ? run.template operator()<2, 2>(tile, column)
                   : run.template operator()<2, 1>(tile, column);
    } else {
      columns == 2 ? run.template operator()<1, 2>(tile, column)
                   : run.template operator()<1, 1>(tile, column);
    }
  }
}

MOESAIC_INLINE void PrefetchLevel2(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

// Calls run.operator()<row, panel>() for every tile of a block.
template <int R, int P, class Run>
MOESAIC_INLINE void ForTiles(const Run& run) {
  run.template operator()<0, 0>();
  if constexpr (P == 2) run.template operator()<0, 1>();
  if constexpr (R == 2) run.template operator()<1, 0>();
  if constexpr (R == 2 && P == 2) run.template operator()<1, 1>();
}

constexpr int64_t kUneven = INT64_MIN;

MOESAIC_INLINE int64_t StrideOf(const std::byte* const* x, int64_t m) {
  const int64_t stride = m > 1 ? x[1] - x[0] : kLineBytes;
  for (int64_t r = 2; r < m; ++r) {
    if (x[r] - x[r - 1] != stride) return kUneven;
  }
  return stride;
}

// Tiles of activations are loaded from where the rows lie. Rows without a common stride are copied
// to where they have one, as long as they fit there: Product::RowBytes of each.
template <class Product>
struct EvenRows {
  static constexpr int64_t kTileRows = 2 * kAmxRows;
  static constexpr int64_t kScratchBytes = int64_t{512} << 10;

  // Their activations stay in a level 2 cache while panels pass by.
  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape& shape) {
    const int64_t rows = kScratchBytes / StrideFor(shape) / kTileRows * kTileRows;
    return MinOf(MaxOf(rows, kTileRows), Product::kChunkRows);
  }

  static void PrepareRows(const std::byte** x, int64_t m, const PanelShape& shape,
                          std::byte* scratch) {
    const int64_t stride = StrideFor(shape);
    if (StrideOf(x, m) != kUneven || m * stride > kScratchBytes) return;
    for (int64_t r = 0; r < m; ++r, scratch += stride) {
      __builtin_memcpy(scratch, x[r], static_cast<size_t>(Product::RowBytes(shape)));
      x[r] = scratch;
    }
  }

 protected:
  // Loads a line of each of `rows` rows from `offset` on; kEven: they have a common stride.
  template <int kRow, bool kEven>
  MOESAIC_INLINE static void LoadX(const std::byte* const* x, int64_t stride, int64_t rows,
                                   int64_t offset) {
    if constexpr (kEven) return Tiles::LoadX<kRow>(x[0] + offset, stride);
    alignas(64) std::byte tile[kAmxRows * kLineBytes];
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(tile + r * kLineBytes, x[r] + offset, kLineBytes);
    }
    Tiles::LoadX<kRow>(tile, kLineBytes);
  }
  template <int kRow>
  MOESAIC_INLINE static void LoadRows(const std::byte* const* x, int64_t stride, int64_t rows,
                                      int64_t offset) {
    stride == kUneven ? LoadX<kRow, false>(x, stride, rows, offset)
                      : LoadX<kRow, true>(x, stride, rows, offset);
  }

 private:
  // An odd number of lines: the rows of a tile are in different sets of a cache.
  MOESAIC_INLINE static int64_t StrideFor(const PanelShape& shape) {
    return (CeilDiv(Product::RowBytes(shape), kLineBytes) | 1) * kLineBytes;
  }
};

struct AmxBf16Product : EvenRows<AmxBf16Product> {
  static constexpr ActivationType kActivations = ActivationType::kBf16;
  static constexpr int64_t kChunkRows = 256;
  static constexpr int64_t kLargeColumns = 2;
  static constexpr int64_t kMaxColumns = 8;

  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    return CeilDiv(shape.lines, kStepLines) * kLineBytes;
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m) {
    return m <= kChunkRows * kLargeColumns / kMaxColumns ? kMaxColumns : kLargeColumns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes,
                      const std::byte*, float* sums) {
    const int64_t lines = shape.lines;
    const AmxRows rows(m);
    const int64_t stride = StrideOf(x, m);
    Tiles::Configure(rows.tile_rows, kLineBytes, kStepLines);
    if (stride == kUneven) {
      AddColumns<false>(x, stride, rows, w, columns, lines, next_bytes, sums);
    } else {
      AddColumns<true>(x, stride, rows, w, columns, lines, next_bytes, sums);
    }
  }

 private:
  static constexpr int64_t kStepLines = 16;
  static constexpr int64_t kStepBytes = kStepLines * kLineBytes;
  // Two panels of a block of steps stay in a level 1 cache while rows pass by.
  static constexpr int64_t kBlockSteps = 8;
  static constexpr int64_t kTileFloats = kAmxRows * kLanes;

  // Two panels on their way through all rows.
  struct Pass {
    // The sums between blocks of steps: where they belong in the end, but for those of a last tile
    // that has rows of the one before. Rows of two tiles would be added twice.
    float* SumsOf(int64_t tile, int64_t panel, bool ended) {
      const bool apart = !ended && tile + 1 == rows.tiles && rows.m % rows.tile_rows != 0;
      return apart ? last_tile + panel * kTileFloats
                   : sums + (panel * rows.m + rows.begin(tile)) * kLanes;
    }

    const AmxRows& rows;
    float* sums;
    float* last_tile;
    int64_t asked_lines = 0;  // of the panels after these, for which memory was asked
  };

  template <bool kEven>
  static void AddColumns(const std::byte* const* x, int64_t stride, const AmxRows& rows,
                         const std::byte* const* w, int64_t columns, int64_t lines,
                         int64_t next_bytes, float* sums) {
    const int64_t ahead = columns > 2 ? w[2] - w[0] : next_bytes;
    const int64_t steps = CeilDiv(lines, kStepLines);
    const int64_t block = rows.tiles > 2 ? kBlockSteps : steps;
    alignas(64) float last_tile[2 * kTileFloats];
    for (int64_t c = 0; c < columns; c += 2) {
      Pass pass{.rows = rows, .sums = sums + c * rows.m * kLanes, .last_tile = last_tile};
      for (int64_t step = 0; step < steps; step += block) {
        ForAmxBlocks(rows.tiles, 0, MinOf<int64_t>(columns - c, 2),
                     [&]<int R, int P>(int64_t tile, int64_t) {
                       AddBlock<R, P, kEven>(x, stride, tile, w + c, lines, step,
                                             MinOf(step + block, steps), ahead, pass);
                     });
      }
    }
  }

  // Adds steps [begin, end) to the sums of R tiles of rows and P panels.
  template <int R, int P, bool kEven>
  static void AddBlock(const std::byte* const* x, int64_t stride, int64_t tile,
                       const std::byte* const* w, int64_t lines, int64_t begin, int64_t end,
                       int64_t ahead, Pass& pass) {
    const AmxRows& rows = pass.rows;
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      if (begin == 0) return Tiles::ZeroSums<kRow, kPanel>();
      Tiles::LoadSums<kRow, kPanel>(pass.SumsOf(tile + kRow, kPanel, false));
    });
    const std::byte* const* x0 = x + rows.begin(tile);
    const std::byte* const* x1 = R == 2 ? x + rows.begin(tile + 1) : x0;
    const auto add = [&](int64_t step, const std::byte* w0, const std::byte* w1) {
      LoadX<0, kEven>(x0, stride, rows.tile_rows, step * kLineBytes);
      Tiles::LoadWeights<0>(w0);
      if constexpr (P == 2) Tiles::LoadWeights<1>(w1);
      if constexpr (R == 2) LoadX<1, kEven>(x1, stride, rows.tile_rows, step * kLineBytes);
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBf16<kRow, kPanel>(); });
    };
    // All steps share the work of asking for the next panels, line after line: this CPU fetches no
    // neighbours by itself (docs/benchmarks.md).
    const int64_t share = CeilDiv(R * kStepLines, rows.tiles);
    const int64_t whole_end = MinOf(end, lines / kStepLines);
    for (int64_t step = begin; step < whole_end; ++step) {
      const std::byte* w0 = w[0] + step * kStepBytes;
      const std::byte* w1 = P == 2 ? w[1] + step * kStepBytes : nullptr;
      const int64_t asked_end = MinOf(pass.asked_lines + share, lines);
      for (; pass.asked_lines < asked_end; ++pass.asked_lines) {
        const int64_t offset = ahead + pass.asked_lines * kLineBytes;
        PrefetchLevel2(w[0] + offset);
        if constexpr (P == 2) PrefetchLevel2(w[1] + offset);
      }
      add(step, w0, w1);
    }
    if (whole_end < end) {
      alignas(64) std::byte last_step[P][kStepBytes] = {};
      const auto rest = static_cast<size_t>(lines % kStepLines * kLineBytes);
      for (int p = 0; p < P; ++p) {
        __builtin_memcpy(last_step[p], w[p] + whole_end * kStepBytes, rest);
      }
      add(whole_end, last_step[0], last_step[P - 1]);
    }
    const bool ended = end == CeilDiv(lines, kStepLines);
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      Tiles::StoreSums<kRow, kPanel>(pass.SumsOf(tile + kRow, kPanel, ended));
    });
  }
};

// A step is 64 inputs; two of them are a group. A unit of work is a pair of groups of one or two
// tiles of rows and panels: while the tiles of one unit are multiplied, the sums of the unit
// before, which have left the tiles, are scaled and added in vectors. Both units' sums and the
// pair's weights stay in a level 1 cache, which is what decides the speed (docs/benchmarks.md).
template <WeightType kType>
struct AmxQuantProduct : EvenRows<AmxQuantProduct<kType>> {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
  static constexpr int64_t kChunkRows = 128;
  static constexpr int64_t kLargeColumns = 8;
  static constexpr int64_t kMaxColumns = 8;
  using Rows = EvenRows<AmxQuantProduct>;
  // Behind what EvenRows has: the scales of the rows, [groups][rows].
  static constexpr int64_t kScalesBytes = int64_t{256} << 10;
  static constexpr int64_t kScratchBytes = Rows::kScratchBytes + kScalesBytes;
  static constexpr auto kScaleBytesOfRow = static_cast<int64_t>(sizeof(ActivationScale));
  static constexpr int64_t kMaxInputs =
      kScalesBytes / (Rows::kTileRows * kScaleBytesOfRow) * kQuantGroup;

  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape& shape) {
    const int64_t rows = kScalesBytes / (CeilDiv(shape.k, kQuantGroup) * kScaleBytesOfRow);
    return MinOf(Rows::ChunkRows(shape), rows / Rows::kTileRows * Rows::kTileRows);
  }
  static void PrepareRows(const std::byte** x, int64_t m, const PanelShape& shape,
                          std::byte* scratch) {
    auto* const to = reinterpret_cast<ActivationScale*>(scratch + Rows::kScratchBytes);
    for (int64_t r = 0; r < m; ++r) {
      const auto* from =
          reinterpret_cast<const ActivationScale*>(x[r] + ActivationScalesOffset(shape.k));
      for (int64_t group = 0; group < CeilDiv(shape.k, kQuantGroup); ++group) {
        to[group * m + r] = from[group];
      }
    }
    Rows::PrepareRows(x, m, shape, scratch);
    Tiles::Configure(AmxRows(m).tile_rows, kLineBytes, kStepLines);
  }
  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    return ActivationScalesOffset(shape.k);
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t) { return kLargeColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes,
                      const std::byte* scratch, float* sums) {
    const AmxRows rows(m);
    const int64_t stride = StrideOf(x, m);
    const int64_t pairs = CeilDiv(shape.k, 2 * kQuantGroup);
    const int64_t ahead = columns > 2 ? w[2] - w[0] : next_bytes;
    const auto* scales = reinterpret_cast<const ActivationScale*>(scratch + Rows::kScratchBytes);
    Unit units[2];
    int64_t count = 0;
    for (int64_t c = 0; c < columns; c += 2) {
      const int64_t panels = MinOf<int64_t>(columns - c, 2);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const PairOfPanels weights(w + c, panels, shape.k, pair);
        ForAmxBlocks(rows.tiles, c, panels, [&]<int R, int P>(int64_t tile, int64_t column) {
          Unit& unit = units[count % 2];
          unit.Begin(scales + 2 * pair * m, rows, tile, R, P, weights, sums + column * m * kLanes);
          // The tiles of rows share the work of asking for the next panels.
          const int64_t first_line = tile * kPairLines / rows.tiles;
          const int64_t end_line = (tile + R) * kPairLines / rows.tiles;
          const int64_t at = pair + kPairsAhead;
          const int64_t offset =
              at < pairs ? at * PairBytes(kType) : ahead + (at - pairs) * PairBytes(kType);
          for (int64_t line = first_line; line < end_line; ++line) {
            for (int64_t p = 0; p < P; ++p) {
              __builtin_prefetch(w[column + p] + offset + line * kLineBytes);
            }
          }
          Multiply<R, P>(x, stride, rows, tile, weights, unit, units[(count + 1) % 2]);
          ++count;
        });
      }
    }
    units[(count + 1) % 2].FoldHalf(0);
    units[(count + 1) % 2].FoldHalf(1);
  }

 private:
  // Distance of what is asked for, in units.
  static constexpr int64_t kPairsAhead = 2;
  static constexpr int64_t kStepLines = 16;
  static constexpr int64_t kStepBytes = kStepLines * kLineBytes;
  static constexpr int64_t kPairLines = PairBytes(kType) / kLineBytes;
  static constexpr int64_t kWideBytes = PairBytes(WeightType::kInt8);
  static constexpr int64_t kTileInts = kAmxRows * kLanes;

  // A pair of groups of one or two panels, as int8.
  struct PairOfPanels {
    PairOfPanels(const std::byte* const* w, int64_t count, int64_t k, int64_t pair)
        : range{k, 2 * pair, MinOf(2 * pair + 2, CeilDiv(k, kQuantGroup))},
          whole(range.subgroups() == 2 * kSubgroups) {
      for (int64_t p = 0; p < count; ++p) {
        panels[p] = w[p] + pair * PairBytes(kType);
        scales[p] = panels[p];
        const int64_t last = range.subgroups(range.end - 1);
        if constexpr (kType == WeightType::kInt4) {
          WidenGroups(panels[p], range, memory + p * kWideBytes);
          panels[p] = memory + p * kWideBytes;
        } else if (last % 2 == 1) {
          // Half a step, which may be the end of the matrix.
          const int64_t at =
              GroupOffset(WeightType::kInt8, range.end - 1 - range.begin) + last / 2 * kStepBytes;
          std::byte* const step = memory + p * kStepBytes;
          __builtin_memcpy(step, panels[p] + at, kStepBytes / 2);
          __builtin_memset(step + kStepBytes / 2, 0, kStepBytes / 2);
          half_step_at = at;
        }
      }
    }
    int64_t groups() const { return range.end - range.begin; }
    int64_t steps(int64_t at) const { return CeilDiv(range.subgroups(range.begin + at), 2); }
    MOESAIC_INLINE const std::byte* Step(int64_t panel, int64_t at, int64_t step) const {
      const int64_t offset = GroupOffset(WeightType::kInt8, at) + step * kStepBytes;
      return offset == half_step_at ? memory + panel * kStepBytes : panels[panel] + offset;
    }

    const GroupRange range;
    const std::byte* panels[2];
    const std::byte* scales[2];  // their lines
    int64_t half_step_at = -1;
    const bool whole;
    alignas(64) std::byte memory[2 * (kType == WeightType::kInt4 ? kWideBytes : kStepBytes)];
  };

  // What is left to do for a unit when its sums are known: those of up to four tiles.
  struct Unit {
    MOESAIC_INLINE void Begin(const ActivationScale* of_rows, const AmxRows& rows, int64_t tile,
                              int r, int p, const PairOfPanels& weights, float* to) {
      count = r * p;
      whole = weights.whole;
      groups = weights.groups();
      first = weights.range.begin == 0;
      m = rows.m;
      tile_rows = rows.tile_rows;
      for (int i = 0; i < r; ++i) {
        const int64_t begin = rows.begin(tile + i);
        // What two tiles share is added once.
        const int64_t before = tile + i == 0 ? 0 : rows.begin(tile + i - 1) + rows.tile_rows;
        const int64_t skipped = MaxOf<int64_t>(before - begin, 0);
        for (int j = 0; j < p; ++j) {
          tiles[i * p + j] = {.first_row = skipped,
                              .sums = to + (j * rows.m + begin) * kLanes,
                              .scales = weights.scales[j],
                              .of_rows = of_rows + begin};
        }
      }
    }

    // Adds half of the tiles, the first or the second one.
    MOESAIC_INLINE void FoldHalf(int half) const {
      const int end = (half + 1) * count >> 1;
      for (int i = half * count >> 1; i < end; ++i) FoldTile(i);
    }

    // Of tile `tile`.
    MOESAIC_INLINE int32_t* Dots(int group, int tile) { return dots[tile][group]; }

   private:
    struct TileSums {
      int64_t first_row;
      float* sums;
      const std::byte* scales;
      const ActivationScale* of_rows;
    };

    MOESAIC_INLINE void FoldTile(int i) const {
      const TileSums& tile = tiles[i];
      if (whole && tile_rows == kAmxRows && tile.first_row == 0) {
        return FoldRows<kAmxRows, 2>(i, tile, 0);
      }
      FoldPartOfTile(i, tile);
    }

    __attribute__((noinline)) void FoldPartOfTile(int i, const TileSums& tile) const {
      int64_t row = tile.first_row;
      const auto fold = [&]<int N>() {
        for (; row + N <= tile_rows; row += N) {
          groups == 2 ? FoldRows<N, 2>(i, tile, row) : FoldRows<N, 1>(i, tile, row);
        }
      };
      fold.template operator()<16>();
      fold.template operator()<8>();
      fold.template operator()<4>();
      fold.template operator()<2>();
      fold.template operator()<1>();
    }

    template <int N, int kGroups>
    MOESAIC_INLINE void FoldRows(int i, const TileSums& tile, int64_t row) const {
      float* const to = tile.sums + row * kLanes;
      Vec16 total[N];
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) total[r] = first ? Zero() : Load(to + r * kLanes);
      const ActivationScale* of = tile.of_rows + row;
      MOESAIC_UNROLL
      for (int group = 0; group < kGroups; ++group, of += m) {
        const Vec16 scale = LoadF16(tile.scales + group * kScaleBytes);
        const int32_t* from = dots[i][group] + row * kLanes;
        MOESAIC_UNROLL
        for (int r = 0; r < N; ++r) {
          const Ints16 dot = AddToAll(LoadDots(from + r * kLanes), of[r].correction);
          total[r] = Fma(ToFloats(dot), Mul(scale, Set(of[r].scale)), total[r]);
        }
      }
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) Store(to + r * kLanes, total[r]);
    }

    alignas(64) int32_t dots[4][2][kTileInts];  // [tile][group]
    TileSums tiles[4];
    int count = 0;
    bool whole = false;  // two groups, nothing missing
    bool first = false;
    int64_t groups = 0;
    int64_t m = 0;
    int64_t tile_rows = 0;
  };

  // The tiles of a unit, and meanwhile what is left of the one before it. Sums are stored late: a
  // product's result is long in coming.
  template <int R, int P>
  MOESAIC_INLINE static void Multiply(const std::byte* const* x, int64_t stride,
                                      const AmxRows& rows, int64_t tile,
                                      const PairOfPanels& weights, Unit& unit, const Unit& before) {
    if (weights.whole) {
      MultiplyGroup<R, P>(x, stride, rows, tile, weights, 0, 2, unit, before);
      MultiplyGroup<R, P>(x, stride, rows, tile, weights, 1, 2, unit, before);
      return;
    }
    MultiplyGroup<R, P>(x, stride, rows, tile, weights, 0, weights.steps(0), unit, before);
    if (weights.groups() == 2) {
      MultiplyGroup<R, P>(x, stride, rows, tile, weights, 1, weights.steps(1), unit, before);
    } else {
      before.FoldHalf(1);
    }
  }

  template <int R, int P>
  MOESAIC_INLINE static void MultiplyGroup(const std::byte* const* x, int64_t stride,
                                           const AmxRows& rows, int64_t tile,
                                           const PairOfPanels& weights, int at, int64_t steps,
                                           Unit& unit, const Unit& before) {
    ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::ZeroSums<kRow, kPanel>(); });
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t offset = (weights.range.begin + at) * kQuantGroup + step * kLineBytes;
      AmxQuantProduct::template LoadRows<0>(x + rows.begin(tile), stride, rows.tile_rows, offset);
      Tiles::LoadWeights<0>(weights.Step(0, at, step));
      if constexpr (P == 2) Tiles::LoadWeights<1>(weights.Step(1, at, step));
      if constexpr (R == 2) {
        AmxQuantProduct::template LoadRows<1>(x + rows.begin(tile + 1), stride, rows.tile_rows,
                                              offset);
      }
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBytes<kRow, kPanel>(); });
    }
    before.FoldHalf(at);
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      Tiles::StoreSums<kRow, kPanel>(unit.Dots(at, kRow * P + kPanel));
    });
  }
};

// More inputs than have room for their scales do not occur in practice.
template <WeightType kType>
void AmxQuantMatmulOf(const MatmulArgs& args) {
  if (args.w.k > AmxQuantProduct<kType>::kMaxInputs) return MatmulOf<QuantProduct<kType>>(args);
  MatmulOf<AmxQuantProduct<kType>>(args);
  Tiles::Release();
}

template <WeightType kType>
void AmxQuantGateUpOf(const GateUpArgs& args) {
  if (args.gate.k > AmxQuantProduct<kType>::kMaxInputs) return GateUpOf<QuantProduct<kType>>(args);
  GateUpOf<AmxQuantProduct<kType>>(args);
  Tiles::Release();
}

// The products of one implementation of Tiles.
void AmxMatmul(const MatmulArgs& args) {
  if (args.w.type == WeightType::kF32) {
    return MatmulOf<FloatProduct<Bf16TimesF32, ActivationType::kBf16>>(args);
  }
  MatmulOf<AmxBf16Product>(args);
  Tiles::Release();
}

void AmxGateUp(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kF32) {
    return GateUpOf<FloatProduct<Bf16TimesF32, ActivationType::kBf16>>(args);
  }
  GateUpOf<AmxBf16Product>(args);
  Tiles::Release();
}

void AmxQuantMatmul(const MatmulArgs& args) {
  args.w.type == WeightType::kInt8 ? AmxQuantMatmulOf<WeightType::kInt8>(args)
                                   : AmxQuantMatmulOf<WeightType::kInt4>(args);
}

void AmxQuantGateUp(const GateUpArgs& args) {
  args.gate.type == WeightType::kInt8 ? AmxQuantGateUpOf<WeightType::kInt8>(args)
                                      : AmxQuantGateUpOf<WeightType::kInt4>(args);
}

constexpr ProductKernels kAmxBf16 = {.matmul = AmxMatmul, .gate_up = AmxGateUp};
constexpr ProductKernels kAmxIntegers = {.matmul = AmxQuantMatmul, .gate_up = AmxQuantGateUp};

}  // namespace
}  // namespace moesaic
