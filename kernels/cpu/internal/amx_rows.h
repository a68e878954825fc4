// How rows and panels lie in tile registers, for the products of amx_bf16.h and amx_integers.h.
// Included after Tiles.
//
// A line of a packed panel is a row of a tile of weights as it is: pairs of bf16 or four bytes of
// 16 outputs. Rows of activations are loaded from where they lie; gathered ones, which have no
// common stride, are copied to where they have one. They are spread over tiles of equal height, so
// that few rows cost few cycles.
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
  // What stays in a level 2 cache while panels pass by: of 256 rows, 1024 bf16 inputs.
  static constexpr int64_t kScratchBytes = 256 * 33 * kLineBytes;

  static void PrepareRows(const std::byte** x, int64_t m, const PanelShape& shape,
                          std::byte* scratch) {
    const int64_t stride = StrideFor(shape);
    if (StrideOf(x, m) != kUneven || !Fits(m, shape)) return;
    for (int64_t r = 0; r < m; ++r, scratch += stride) {
      __builtin_memcpy(scratch, x[r], static_cast<size_t>(Product::RowBytes(shape)));
      x[r] = scratch;
    }
  }

  // Whether whole rows fit. Others are copied part by part, by Columns.
  MOESAIC_INLINE static bool Fits(int64_t m, const PanelShape& shape) {
    return m * StrideFor(shape) <= kScratchBytes;
  }
  // Lines of a part of each of m rows, a multiple of `unit`, an even number.
  MOESAIC_INLINE static int64_t PartLines(int64_t m, int64_t unit) {
    return (kScratchBytes / m / kLineBytes - 1) / unit * unit;
  }
  // Lines [begin, end) of the rows, of `part_lines` at most; `copies` are where they are then.
  static void CopyPart(const std::byte* const* x, int64_t m, int64_t begin, int64_t end,
                       int64_t part_lines, std::byte* scratch, const std::byte** copies) {
    for (int64_t r = 0; r < m; ++r, scratch += (part_lines + 1) * kLineBytes) {
      __builtin_memcpy(scratch, x[r] + begin * kLineBytes,
                       static_cast<size_t>((end - begin) * kLineBytes));
      copies[r] = scratch;
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

  // An odd number of lines: the rows of a tile are in different sets of a cache.
  MOESAIC_INLINE static int64_t StrideFor(const PanelShape& shape) {
    return (CeilDiv(Product::RowBytes(shape), kLineBytes) | 1) * kLineBytes;
  }
};

}  // namespace
}  // namespace moesaic
