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

MOESAIC_INLINE void PrefetchLines(const std::byte* from, int64_t lines) {
  for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * kLineBytes);
}

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
  // Loads kBytes of each of `rows` rows from `offset` on.
  template <int kRow, int64_t kBytes>
  MOESAIC_INLINE static void LoadX(const std::byte* const* x, int64_t stride, int64_t rows,
                                   int64_t offset) {
    if (stride != kUneven) return Tiles::LoadX<kRow>(x[0] + offset, stride);
    alignas(64) std::byte tile[kAmxRows * kBytes];
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(tile + r * kBytes, x[r] + offset, kBytes);
    }
    Tiles::LoadX<kRow>(tile, kBytes);
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
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, float* sums) {
    const int64_t lines = shape.lines;
    const AmxRows rows(m);
    const int64_t stride = StrideOf(x, m);
    const int64_t ahead = columns > 2 ? w[2] - w[0] : next_bytes;
    Tiles::Configure(rows.tile_rows, kLineBytes, kStepLines);
    for (int64_t c = 0; c < columns; c += 2) {
      ForAmxBlocks(rows.tiles, c, MinOf<int64_t>(columns - c, 2),
                   [&]<int R, int P>(int64_t tile, int64_t column) {
                     AddBlock<R, P>(x, stride, rows, tile, w + column, lines, ahead,
                                    sums + column * m * kLanes);
                   });
    }
  }

 private:
  static constexpr int64_t kStepLines = 16;
  // Sums of R tiles of rows and P panels.
  template <int R, int P>
  static void AddBlock(const std::byte* const* x, int64_t stride, const AmxRows& rows, int64_t tile,
                       const std::byte* const* w, int64_t lines, int64_t ahead, float* sums) {
    alignas(64) std::byte last_step[P][kStepLines * kLineBytes];
    ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::ZeroSums<kRow, kPanel>(); });
    // The tiles of rows share the work of asking for the next panels.
    const int64_t first_line = tile * kStepLines / rows.tiles;
    const int64_t end_line = (tile + R) * kStepLines / rows.tiles;
    const int64_t steps = CeilDiv(lines, kStepLines);
    for (int64_t step = 0; step < steps; ++step) {
      const std::byte* from[P];
      for (int p = 0; p < P; ++p) {
        from[p] = w[p] + step * kStepLines * kLineBytes;
        for (int64_t line = first_line; line < end_line; line += 2) {
          PrefetchLevel2(from[p] + ahead + line * kLineBytes);
        }
        if (const int64_t rest = lines - step * kStepLines; rest < kStepLines) {
          __builtin_memset(last_step[p], 0, sizeof(last_step[p]));
          __builtin_memcpy(last_step[p], from[p], static_cast<size_t>(rest * kLineBytes));
          from[p] = last_step[p];
        }
      }
      LoadX<0, kLineBytes>(x + rows.begin(tile), stride, rows.tile_rows, step * kLineBytes);
      Tiles::LoadWeights<0>(from[0]);
      if constexpr (P == 2) Tiles::LoadWeights<1>(from[1]);
      if constexpr (R == 2)
        LoadX<1, kLineBytes>(x + rows.begin(tile + 1), stride, rows.tile_rows, step * kLineBytes);
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBf16<kRow, kPanel>(); });
    }
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      Tiles::StoreSums<kRow, kPanel>(sums + (kPanel * rows.m + rows.begin(tile + kRow)) * kLanes);
    });
  }
};

template <WeightType kType>
struct AmxQuantProduct : EvenRows<AmxQuantProduct<kType>> {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
  static constexpr int64_t kChunkRows = 128;
  static constexpr int64_t kLargeColumns = 4;
  static constexpr int64_t kMaxColumns = 4;

  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    const int64_t values = ActivationScalesOffset(shape.k);
    return values + values / kQuantGroup * int64_t{sizeof(ActivationScale)};
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t) { return kLargeColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, float* sums) {
    const AmxRows rows(m);
    const int64_t stride = StrideOf(x, m);
    const int64_t groups = CeilDiv(shape.k, kQuantGroup);
    Tiles::Configure(rows.tile_rows, kLineBytes, kStepLines);
    for (int64_t begin = 0; begin < groups; begin += kBlockGroups) {
      const GroupRange range = {shape.k, begin, MinOf(begin + kBlockGroups, groups)};
      const int64_t offset = begin / kBlockGroups * kBlockBytes;
      const int64_t next = range.end < groups ? offset + kBlockBytes : next_bytes;
      for (int64_t c = 0; c < columns; c += 2) {
        const int64_t count = MinOf<int64_t>(columns - c, 2);
        const BlockOfPanels panels(w + c, count, range, offset);
        ForAmxBlocks(rows.tiles, c, count, [&]<int R, int P>(int64_t tile, int64_t column) {
          // The tiles share the work of prefetching the next block.
          const int64_t first_line = tile * kBlockLines / rows.tiles;
          const int64_t end_line = (tile + R) * kBlockLines / rows.tiles;
          for (int64_t p = 0; p < P; ++p) {
            PrefetchLines(w[column + p] + next + first_line * kLineBytes, end_line - first_line);
          }
          AddBlock<R, P>(x, stride, rows, tile, panels, range, sums + column * m * kLanes);
        });
      }
    }
  }

 private:
  static constexpr int64_t kStepLines = 16;
  static constexpr int64_t kBlockGroups = 4;
  static constexpr int64_t kBlockBytes = kBlockGroups / 2 * PairBytes(kType);
  static constexpr int64_t kBlockLines = kBlockBytes / kLineBytes;
  static constexpr int64_t kWideBytes = kBlockGroups / 2 * PairBytes(WeightType::kInt8);
  static constexpr int64_t kTileInts = kAmxRows * kLanes;

  // A block of groups of two panels, as int8.
  struct BlockOfPanels {
    BlockOfPanels(const std::byte* const* w, int64_t count, const GroupRange& range,
                  int64_t offset) {
      for (int64_t p = 0; p < count; ++p) {
        panels[p] = w[p] + offset;
        if constexpr (kType == WeightType::kInt4) {
          WidenGroups(panels[p], range, memory + p * kWideBytes);
          panels[p] = memory + p * kWideBytes;
        } else if (const int64_t last = range.subgroups(range.end - 1); last % 2 == 1) {
          // The last step is half a tile, which may be the end of the matrix.
          std::byte* const step = memory + p * kStepLines * kLineBytes;
          constexpr int64_t kHalf = kStepLines / 2 * kLineBytes;
          const int64_t at = GroupOffset(WeightType::kInt8, range.end - 1 - range.begin);
          __builtin_memcpy(step, panels[p] + at + (last - 1) * kHalf, kHalf);
          __builtin_memset(step + kHalf, 0, kHalf);
          last_step[p] = step;
        }
      }
    }
    // Where step `step` of a group of `steps` begins.
    MOESAIC_INLINE const std::byte* At(int64_t panel, int64_t group, int64_t step,
                                       bool last) const {
      if (kType == WeightType::kInt8 && last && last_step[panel] != nullptr) {
        return last_step[panel];
      }
      return panels[panel] + GroupOffset(WeightType::kInt8, group) + step * kStepLines * kLineBytes;
    }

    const std::byte* panels[2];
    const std::byte* last_step[2] = {};
    alignas(64)
        std::byte memory[2 * (kType == WeightType::kInt4 ? kWideBytes : kStepLines * kLineBytes)];
  };

  // Adds a block of groups of R tiles of rows and P panels: first the exact sums of all groups on
  // the tiles, then, row by row in registers, their scales. Sums start at zero with group 0.
  template <int R, int P>
  static void AddBlock(const std::byte* const* x, int64_t stride, const AmxRows& rows, int64_t tile,
                       const BlockOfPanels& panels, const GroupRange& range, float* sums) {
    alignas(64) int32_t dots[kBlockGroups][R][P][kTileInts];
    for (int64_t group = range.begin; group < range.end; ++group) {
      const int64_t at = group - range.begin;
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::ZeroSums<kRow, kPanel>(); });
      const int64_t steps = CeilDiv(range.subgroups(group), 2);
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t offset = group * kQuantGroup + step * kLineBytes;
        const bool last = group + 1 == range.end && step + 1 == steps;
        AmxQuantProduct::template LoadX<0, kLineBytes>(x + rows.begin(tile), stride, rows.tile_rows,
                                                       offset);
        Tiles::LoadWeights<0>(panels.At(0, at, step, last));
        if constexpr (P == 2) Tiles::LoadWeights<1>(panels.At(1, at, step, last));
        if constexpr (R == 2) {
          AmxQuantProduct::template LoadX<1, kLineBytes>(x + rows.begin(tile + 1), stride,
                                                         rows.tile_rows, offset);
        }
        ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBytes<kRow, kPanel>(); });
      }
      ForTiles<R, P>(
          [&]<int kRow, int kPanel>() { Tiles::StoreSums<kRow, kPanel>(dots[at][kRow][kPanel]); });
    }
    for (int r = 0; r < R; ++r) {
      const TileScales scales(x, rows, tile + r, range);
      for (int p = 0; p < P; ++p) {
        Fold(dots[0][r][p], R * P * kTileInts, scales, rows.tile_rows, panels.panels[p], range,
             sums + (p * rows.m + rows.begin(tile + r)) * kLanes);
      }
    }
  }

  // What the rows of a tile bring along to a block of groups, side by side.
  struct TileScales {
    TileScales(const std::byte* const* x, const AmxRows& rows, int64_t tile,
               const GroupRange& range)
        : first_row(tile == 0 ? 0 : rows.begin(tile - 1) + rows.tile_rows - rows.begin(tile)) {
      for (int64_t r = first_row; r < rows.tile_rows; ++r) {
        const auto* of = reinterpret_cast<const ActivationScale*>(x[rows.begin(tile) + r] +
                                                                  ActivationScalesOffset(range.k));
        for (int64_t group = range.begin; group < range.end; ++group) {
          scales[group - range.begin][r] = of[group].scale;
          corrections[group - range.begin][r] = of[group].correction;
        }
      }
    }

    const int64_t first_row;  // what two tiles share is added once
    float scales[kBlockGroups][kAmxRows];
    int32_t corrections[kBlockGroups][kAmxRows];
  };

  // Adds the groups of a tile, whose sums are `group_ints` apart.
  static void Fold(const int32_t* dots, int64_t group_ints, const TileScales& of, int64_t tile_rows,
                   const std::byte* panel, const GroupRange& range, float* sums) {
    int64_t row = of.first_row;
    const auto fold = [&]<int N>() {
      for (; row + N <= tile_rows; row += N) {
        FoldRows<N>(dots, group_ints, of, panel, range, row, sums);
      }
    };
    fold.template operator()<16>();
    fold.template operator()<8>();
    fold.template operator()<4>();
    fold.template operator()<2>();
    fold.template operator()<1>();
  }

  template <int N>
  MOESAIC_INLINE static void FoldRows(const int32_t* dots, int64_t group_ints, const TileScales& of,
                                      const std::byte* panel, const GroupRange& range, int64_t row,
                                      float* to) {
    Vec16 sums[N];
    MOESAIC_UNROLL
    for (int r = 0; r < N; ++r) {
      sums[r] = range.begin == 0 ? Zero() : Load(to + (row + r) * kLanes);
    }
    for (int64_t at = 0; at < range.end - range.begin; ++at) {
      const Vec16 scale = LoadF16(panel + ScalesOffset(WeightType::kInt8, at));
      const float* scales = of.scales[at] + row;
      const int32_t* corrections = of.corrections[at] + row;
      const int32_t* from = dots + at * group_ints + row * kLanes;
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) {
        const Ints16 dot = AddToAll(LoadDots(from + r * kLanes), corrections[r]);
        sums[r] = Fma(ToFloats(dot), Mul(scale, Set(scales[r])), sums[r]);
      }
    }
    MOESAIC_UNROLL
    for (int r = 0; r < N; ++r) Store(to + (row + r) * kLanes, sums[r]);
  }
};

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
  args.w.type == WeightType::kInt8 ? MatmulOf<AmxQuantProduct<WeightType::kInt8>>(args)
                                   : MatmulOf<AmxQuantProduct<WeightType::kInt4>>(args);
  Tiles::Release();
}

void AmxQuantGateUp(const GateUpArgs& args) {
  args.gate.type == WeightType::kInt8 ? GateUpOf<AmxQuantProduct<WeightType::kInt8>>(args)
                                      : GateUpOf<AmxQuantProduct<WeightType::kInt4>>(args);
  Tiles::Release();
}

constexpr ProductKernels kAmxBf16 = {.matmul = AmxMatmul, .gate_up = AmxGateUp};
constexpr ProductKernels kAmxIntegers = {.matmul = AmxQuantMatmul, .gate_up = AmxQuantGateUp};

}  // namespace
}  // namespace moesaic
