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
// Integers: a step is one group of 32 inputs. Its sums are exact; eight groups are multiplied and
// stored, then scaled in vectors as quant_tiles.h does. Tiles and vectors do not overlap, and
// taking turns more often is slower (docs/benchmarks.md).
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
  MOESAIC_INLINE static int64_t ChunkRows(int64_t lines) {
    const int64_t rows = kScratchBytes / StrideFor(lines) / kTileRows * kTileRows;
    return MinOf(MaxOf(rows, kTileRows), Product::kChunkRows);
  }

  static void PrepareRows(const std::byte** x, int64_t m, int64_t lines, std::byte* scratch) {
    const int64_t stride = StrideFor(lines);
    if (StrideOf(x, m) != kUneven || m * stride > kScratchBytes) return;
    for (int64_t r = 0; r < m; ++r, scratch += stride) {
      __builtin_memcpy(scratch, x[r], static_cast<size_t>(Product::RowBytes(lines)));
      x[r] = scratch;
    }
  }

 protected:
  // Loads kBytes of each of `rows` rows from `offset` on; kEven: they have a common stride.
  template <int kRow, bool kEven, int64_t kBytes = kLineBytes>
  MOESAIC_INLINE static void LoadX(const std::byte* const* x, int64_t stride, int64_t rows,
                                   int64_t offset) {
    if constexpr (kEven) return Tiles::LoadX<kRow>(x[0] + offset, stride);
    alignas(64) std::byte tile[kAmxRows * kBytes];
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(tile + r * kBytes, x[r] + offset, kBytes);
    }
    Tiles::LoadX<kRow>(tile, kBytes);
  }

 private:
  // An odd number of lines: the rows of a tile are in different sets of a cache.
  MOESAIC_INLINE static int64_t StrideFor(int64_t lines) {
    return (CeilDiv(Product::RowBytes(lines), kLineBytes) | 1) * kLineBytes;
  }
};

struct AmxBf16Product : EvenRows<AmxBf16Product> {
  static constexpr ActivationType kActivations = ActivationType::kBf16;
  static constexpr int64_t kChunkRows = 256;
  static constexpr int64_t kLargeColumns = 2;
  static constexpr int64_t kMaxColumns = 8;

  MOESAIC_INLINE static int64_t RowBytes(int64_t lines) {
    return CeilDiv(lines, kStepLines) * kLineBytes;
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m) {
    return m <= kChunkRows * kLargeColumns / kMaxColumns ? kMaxColumns : kLargeColumns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, int64_t lines, int64_t next_bytes, float* sums) {
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

template <WeightType kType>
struct AmxQuantProduct : EvenRows<AmxQuantProduct<kType>> {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
  static constexpr int64_t kChunkRows = 128;
  static constexpr int64_t kLargeColumns = 4;  // gate and up of a group of activations
  static constexpr int64_t kMaxColumns = 4;

  MOESAIC_INLINE static int64_t RowBytes(int64_t lines) {
    return GroupsOf(lines) * int64_t{sizeof(ActivationGroup)};
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t) { return kLargeColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, int64_t lines, int64_t next_bytes, float* sums) {
    const AmxRows rows(m);
    const int64_t stride = StrideOf(x, m);
    const int64_t groups = GroupsOf(lines);
    alignas(64) std::byte widened[kType == WeightType::kInt4 ? kMaxColumns * kWideBytes : 1];
    Tiles::Configure(rows.tile_rows, kQuantGroup, kStepLines);
    for (int64_t begin = 0; begin < groups; begin += kBlockGroups) {
      const int64_t end = MinOf(begin + kBlockGroups, groups);
      const int64_t offset = begin / 2 * kPairBytes<kType>;
      const std::byte* panels[kMaxColumns];
      for (int64_t c = 0; c < columns; ++c) {
        panels[c] = w[c] + offset;
        if constexpr (kType == WeightType::kInt4) {
          WidenGroups(panels[c], end - begin, widened + c * kWideBytes);
          panels[c] = widened + c * kWideBytes;
        }
      }
      const int64_t next = end < groups ? offset + kBlockBytes : next_bytes;
      for (int64_t tile = 0; tile < rows.tiles; ++tile) {
        const TileOfRows of(x, rows, tile, begin, end);
        // The tiles share the work of prefetching the next block.
        const int64_t first_line = tile * kBlockLines / rows.tiles;
        const int64_t end_line = (tile + 1) * kBlockLines / rows.tiles;
        for (int64_t c = 0; c < columns; ++c) {
          PrefetchLines(w[c] + next + first_line * kLineBytes, end_line - first_line);
          AddBlock(x + rows.begin(tile), stride, rows.tile_rows, of, panels[c], begin, end,
                   sums + (c * m + rows.begin(tile)) * kLanes);
        }
      }
    }
    if constexpr (kType == WeightType::kInt4) {
      for (int64_t i = 0; i < columns * m * kLanes; i += kLanes) {
        Store(sums + i, Mul(Load(sums + i), Set(1.0f / 16)));
      }
    }
  }

 private:
  static constexpr int64_t kStepLines = 8;
  static constexpr int64_t kBlockGroups = 8;
  static constexpr int64_t kBlockBytes = kBlockGroups / 2 * kPairBytes<kType>;
  static constexpr int64_t kBlockLines = kBlockBytes / kLineBytes;
  static constexpr int64_t kPairLines = kPairBytes<kType> / kLineBytes;
  static constexpr int64_t kWideBytes = kBlockGroups / 2 * kPairBytes<WeightType::kInt8>;

  // What the rows of a tile bring along to a block of groups, side by side.
  struct TileOfRows {
    TileOfRows(const std::byte* const* x, const AmxRows& rows, int64_t tile, int64_t begin,
               int64_t end)
        : first_row(tile == 0 ? 0 : rows.begin(tile - 1) + rows.tile_rows - rows.begin(tile)) {
      for (int64_t r = first_row; r < rows.tile_rows; ++r) {
        const auto* of = reinterpret_cast<const ActivationGroup*>(x[rows.begin(tile) + r]);
        for (int64_t group = begin; group < end; ++group) {
          scales[group - begin][r] = of[group].scale;
          corrections[group - begin][r] = of[group].correction;
        }
      }
    }

    const int64_t first_row;  // what two tiles share is added once
    float scales[kBlockGroups][kAmxRows];
    int32_t corrections[kBlockGroups][kAmxRows];
  };

  MOESAIC_INLINE static int64_t GroupsOf(int64_t lines) {
    const int64_t pairs = CeilDiv(lines, kPairLines);
    return 2 * pairs - (lines < pairs * kPairLines ? 1 : 0);
  }

  // Groups [begin, end) of a panel, which points to the first of them: first the exact sums of all
  // groups on the tiles, then, row by row in registers, their scales. Sums start at zero with group
  // 0.
  static void AddBlock(const std::byte* const* x, int64_t stride, int64_t tile_rows,
                       const TileOfRows& of, const std::byte* panel, int64_t begin, int64_t end,
                       float* sums) {
    alignas(64) int32_t dots[kBlockGroups][kAmxRows * kLanes];
    const auto multiply = [&]<int kTile>(int64_t at) {
      const int64_t offset = (begin + at) * int64_t{sizeof(ActivationGroup)} +
                             int64_t{offsetof(ActivationGroup, values)};
      if (stride == kUneven) {
        AmxQuantProduct::template LoadX<kTile, false, kQuantGroup>(x, stride, tile_rows, offset);
      } else {
        AmxQuantProduct::template LoadX<kTile, true, kQuantGroup>(x, stride, tile_rows, offset);
      }
      Tiles::LoadWeights<kTile>(panel + at / 2 * kPairBytes<WeightType::kInt8> +
                                (1 + at % 2 * kGroupLines<WeightType::kInt8>)*kLineBytes);
      Tiles::ZeroSums<kTile, kTile>();
      Tiles::DotBytes<kTile, kTile>();
      Tiles::StoreSums<kTile, kTile>(dots[at]);
    };
    const int64_t groups = end - begin;
    for (int64_t at = 0; at < groups; at += 2) {
      multiply.template operator()<0>(at);
      if (at + 1 < groups) multiply.template operator()<1>(at + 1);
    }
    int64_t row = of.first_row;
    const auto fold = [&]<int N>() {
      for (; row + N <= tile_rows; row += N) {
        FoldRows<N>(dots, of, panel, groups, row, begin == 0, sums);
      }
    };
    fold.template operator()<16>();
    fold.template operator()<8>();
    fold.template operator()<4>();
    fold.template operator()<2>();
    fold.template operator()<1>();
  }

  template <int N>
  MOESAIC_INLINE static void FoldRows(const int32_t (*dots)[kAmxRows * kLanes],
                                      const TileOfRows& of, const std::byte* panel, int64_t groups,
                                      int64_t row, bool first, float* to) {
    Vec16 sums[N];
    MOESAIC_UNROLL
    for (int r = 0; r < N; ++r) sums[r] = first ? Zero() : Load(to + (row + r) * kLanes);
    for (int64_t at = 0; at < groups; ++at) {
      const Vec16 scale =
          LoadF16(panel + at / 2 * kPairBytes<WeightType::kInt8> + at % 2 * kScaleBytes);
      const float* scales = of.scales[at] + row;
      const int32_t* corrections = of.corrections[at] + row;
      const int32_t* from = dots[at] + row * kLanes;
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
