// Products with fp8 weights (PackedMatrix, kFp8). Included after Vec16, math.h and tiles.h.
//
// Values become bf16 on the way, which is exact, so that a line of fp8 weights is two lines of bf16
// weights (tiles.h) and is multiplied as these are in the class. The sum of a group of 128 inputs
// is one chain in ascending k without the scale; a product is the sum of them, each multiplied with
// its scale and added in one operation, in ascending order. So the shape of the tiles never changes
// a bit, and instruction sets of a class agree.
#pragma once

#include "kernels/cpu/internal/fp8_packing.h"
#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"
#include "kernels/cpu/internal/tiles.h"

namespace moesaic {
namespace {

// What a policy of tiles.h takes from a decoded line in a register.
template <class Policy, int kStep>
MOESAIC_INLINE auto WeightsOf(const PairLine& line) {
  if constexpr (Policy::kSteps == 1) {
    return Policy::OfPairs(line);
  } else if constexpr (kStep == 0) {
    return EvenOf(line);
  } else {
    return OddOf(line);
  }
}

template <class Policy, int kStep, int M, int P>
MOESAIC_INLINE void Fp8Step(const std::byte* const (&x)[M], int64_t x_offset,
                            const PairLine (&lines)[P], Vec16 (&sums)[M][P]) {
  decltype(WeightsOf<Policy, kStep>(lines[0])) weights[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) weights[p] = WeightsOf<Policy, kStep>(lines[p]);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const auto value = Policy::template X<kStep>(x[m] + x_offset);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) sums[m][p] = Policy::Accumulate(sums[m][p], value, weights[p]);
  }
}

// total = scale * sum + total, of M rows and P panels.
template <int M, int P>
MOESAIC_INLINE void AddGroup(const Vec16 (&sums)[M][P], const std::byte* const (&scales)[P],
                             bool first, float* out, int64_t sum_rows) {
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    const Vec16 scale = Load(scales[p]);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      float* const to = out + (p * sum_rows + m) * kLanes;
      Store(to, Fma(scale, sums[m][p], first ? Zero() : Load(to)));
    }
  }
}

// sums[(p * sum_rows + m) * 16 ..] of M rows and P panels, whose values are decoded in registers.
// Rows are zero from k to a multiple of kFp8LineInputs, as their padding is.
template <class Policy, int M, int P>
void Fp8DirectTile(const std::byte* const* x_rows, const std::byte* const* w, int64_t k, float* out,
                   int64_t sum_rows) {
  // How far ahead of its use memory is asked for.
  constexpr int64_t kAheadOfUse = 24 * kLineBytes;
  const std::byte* x[M];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  const std::byte* at[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) at[p] = w[p];
  for (int64_t first = 0; first < k; first += kQuantGroup) {
    Vec16 sums[M][P];
    const std::byte* scales[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(at[p] + kAheadOfUse);
      scales[p] = at[p];
      at[p] += kLineBytes;
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) sums[m][p] = Zero();
    }
    const int64_t lines = MinOf(CeilDiv(k - first, kFp8LineInputs), kFp8GroupLines);
    for (int64_t line = 0; line < lines; ++line) {
      PairLine low[P];
      PairLine high[P];
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        __builtin_prefetch(at[p] + kAheadOfUse);
        DecodeFp8(at[p], low[p], high[p]);
        at[p] += kLineBytes;
      }
      Fp8Step<Policy, 0, M, P>(x, 0, low, sums);
      if constexpr (Policy::kSteps == 2) Fp8Step<Policy, 1, M, P>(x, 0, low, sums);
      Fp8Step<Policy, 0, M, P>(x, Policy::kXBytes, high, sums);
      if constexpr (Policy::kSteps == 2) Fp8Step<Policy, 1, M, P>(x, Policy::kXBytes, high, sums);
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) x[m] += 2 * Policy::kXBytes;
    }
    AddGroup<M, P>(sums, scales, first == 0, out, sum_rows);
  }
}

template <class Policy, int M = kFp8DirectRows>
void Fp8DirectTiles(int64_t m, const std::byte* const* x, const std::byte* const* w, int64_t panels,
                    int64_t k, float* sums, int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) return Fp8DirectTiles<Policy, M - 1>(m, x, w, panels, k, sums, sum_rows);
  }
  constexpr int kPanels = Fp8TilePanels(M);
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    Fp8DirectTile<Policy, M, kPanels>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= panels; p += 2) {
      Fp8DirectTile<Policy, M, 2>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
    }
  }
  for (; p < panels; ++p) {
    Fp8DirectTile<Policy, M, 1>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
  }
}

constexpr int64_t kFp8Columns = 2;  // of a tile of decoded panels
// A group's lines in bf16.
constexpr int64_t kFp8DecodedBytes = 2 * kFp8GroupLines * kLineBytes;

// Adds a group of decoded lines to the sums of M rows and P panels; x is where the group begins.
template <class Policy, int M, int P>
void Fp8Tile(const std::byte* const* x_rows, int64_t x_offset, const std::byte* decoded,
             int64_t lines, const std::byte* const* group_scales, bool first, float* out,
             int64_t sum_rows) {
  const std::byte* x[M];
  const std::byte* w[P];
  const std::byte* scales[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m] + x_offset;
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    w[p] = decoded + p * kFp8DecodedBytes;
    scales[p] = group_scales[p];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) sums[m][p] = Zero();
  }
  for (int64_t line = 0; line < lines; ++line) {
    TileStep<Policy, M, P, 0>(x, w, line, sums);
    if constexpr (Policy::kSteps == 2) TileStep<Policy, M, P, 1>(x, w, line, sums);
  }
  AddGroup<M, P>(sums, scales, first, out, sum_rows);
}

template <class Policy, int P, int M>
void Fp8TileRows(int64_t m, const std::byte* const* x, int64_t x_offset, const std::byte* decoded,
                 int64_t lines, const std::byte* const* scales, bool first, float* out,
                 int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) {
      return Fp8TileRows<Policy, P, M - 1>(m, x, x_offset, decoded, lines, scales, first, out,
                                           sum_rows);
    }
  }
  Fp8Tile<Policy, M, P>(x, x_offset, decoded, lines, scales, first, out, sum_rows);
}

// For MatmulOf and GateUpOf. Few rows are multiplied with values in registers; for more the values
// of a group become lines of bf16 first, once for all rows of a chunk.
template <class Policy, ActivationType kType>
struct Fp8Product : PlainRows<192> {
  static constexpr ActivationType kActivations = kType;
  static constexpr int64_t kTileRows = kMaxTileRows;
  static constexpr int64_t kMaxColumns = 8;
  static constexpr int64_t kLargeColumns = kFp8Columns;
  static_assert(kChunkRows % kTileRows == 0);
  static_assert(kFp8DirectRows * kMaxColumns <= kChunkRows * kLargeColumns);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) {
    return m <= kFp8DirectRows ? kMaxColumns : kLargeColumns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    if (m <= kFp8DirectRows) return Fp8DirectTiles<Policy>(m, x, w, columns, shape.k, sums, m);
    // What is decoded next is asked for one group ahead, and the first group of the panels that
    // come then with the last one of these.
    alignas(64) std::byte decoded[kFp8Columns * kFp8DecodedBytes];
    constexpr int64_t kTilePanels = TilePanels(kMaxTileRows);
    constexpr int kPanels = kTilePanels < kFp8Columns ? static_cast<int>(kTilePanels) : 2;
    const int64_t tiles = CeilDiv(m, kTileRows);
    for (int64_t first = 0; first < shape.k; first += kQuantGroup) {
      const int64_t lines = MinOf(CeilDiv(shape.k - first, kFp8LineInputs), kFp8GroupLines);
      const std::byte* scales[kFp8Columns];
      const bool last = first + kQuantGroup >= shape.k;
      for (int64_t c = 0; c < columns; ++c) {
        const std::byte* const group = w[c] + first / kQuantGroup * kFp8GroupBytes;
        const std::byte* const next = last ? w[c] + next_bytes : group + kFp8GroupBytes;
        scales[c] = group;
        std::byte* to = decoded + c * kFp8DecodedBytes;
        for (int64_t line = 1; line <= lines; ++line, to += 2 * kLineBytes) {
          PairLine low;
          PairLine high;
          __builtin_prefetch(next + line * kLineBytes);
          DecodeFp8(group + line * kLineBytes, low, high);
          StoreLine(to, low);
          StoreLine(to + kLineBytes, high);
        }
      }
      const int64_t x_offset = first / 2 * Policy::kXBytes;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = tile * m / tiles;
        const int64_t rows = (tile + 1) * m / tiles - begin;
        float* const out = sums + begin * kLanes;
        int64_t c = 0;
        for (; c + kPanels <= columns; c += kPanels) {
          Fp8TileRows<Policy, kPanels, kTileRows>(rows, x + begin, x_offset,
                                                  decoded + c * kFp8DecodedBytes, 2 * lines,
                                                  scales + c, first == 0, out + c * m * kLanes, m);
        }
        for (; c < columns; ++c) {
          Fp8TileRows<Policy, 1, kTileRows>(rows, x + begin, x_offset,
                                            decoded + c * kFp8DecodedBytes, 2 * lines, scales + c,
                                            first == 0, out + c * m * kLanes, m);
        }
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
