// Tiles of products with bf16 and f32 weights. Included after Vec16 and math.h.
//
// A tile of M rows and P panels keeps M * P accumulators in registers; lanes are outputs. Each
// accumulator is one chain of multiply-adds in ascending k whatever M and P are, and storing it
// between two blocks of k is exact, so the shape of the tiles never changes a bit.
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

// A step multiplies one element (or one pair) of x with 16 weights of a panel. Its policy says how
// a 64-byte line of a panel is read in kSteps steps and how many bytes of an x row the line
// consumes.
struct F32TimesBf16 {
  static constexpr int kSteps = 2;
  static constexpr int64_t kXBytes = 8;
  template <int kStep>
  MOESAIC_INLINE static Vec16 Weights(const std::byte* line) {
    if constexpr (kStep == 0) return LoadEven(line);
    return LoadOdd(line);
  }
  template <int kStep>
  MOESAIC_INLINE static Vec16 X(const std::byte* x) {
    return Set(LoadAs<float>(x + kStep * 4));
  }
  MOESAIC_INLINE static Vec16 Accumulate(Vec16 sum, Vec16 x, Vec16 w) { return Fma(x, w, sum); }
};

struct F32TimesF32 {
  static constexpr int kSteps = 1;
  static constexpr int64_t kXBytes = 4;
  template <int kStep>
  MOESAIC_INLINE static Vec16 Weights(const std::byte* line) {
    return Load(line);
  }
  template <int kStep>
  MOESAIC_INLINE static Vec16 X(const std::byte* x) {
    return Set(LoadAs<float>(x));
  }
  MOESAIC_INLINE static Vec16 Accumulate(Vec16 sum, Vec16 x, Vec16 w) { return Fma(x, w, sum); }
};

// bf16 activations with f32 weights (class kBf16): widened, then f32 arithmetic.
struct Bf16TimesF32 {
  static constexpr int kSteps = 1;
  static constexpr int64_t kXBytes = 2;
  template <int kStep>
  MOESAIC_INLINE static Vec16 Weights(const std::byte* line) {
    return Load(line);
  }
  template <int kStep>
  MOESAIC_INLINE static Vec16 X(const std::byte* x) {
    return Set(WidenBf16(LoadAs<uint16_t>(x)));
  }
  MOESAIC_INLINE static Vec16 Accumulate(Vec16 sum, Vec16 x, Vec16 w) { return Fma(x, w, sum); }
};

// Which lines a tile prefetches while it runs: before line `jump_line` those at `offset`, `offset +
// step`, ... from the start of each of its panels, then the same plus `jump`.
struct Prefetch {
  int64_t offset;
  int64_t step;
  int64_t jump_line;
  int64_t jump;
};
// Distance when weights are read once, in lines of each panel.
constexpr int64_t kPrefetchLines = 16;

template <class Policy, int M, int P, int kStep>
MOESAIC_INLINE void TileStep(const std::byte* const (&x)[M], const std::byte* const (&w)[P],
                             int64_t line, Vec16 (&sums)[M][P]) {
  if constexpr (P <= M) {
    decltype(Policy::template Weights<kStep>(nullptr)) weights[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p)
      weights[p] = Policy::template Weights<kStep>(w[p] + line * kLineBytes);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      const auto value = Policy::template X<kStep>(x[m] + line * Policy::kXBytes);
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) sums[m][p] = Policy::Accumulate(sums[m][p], value, weights[p]);
    }
  } else {
    decltype(Policy::template X<kStep>(nullptr)) values[M];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m)
      values[m] = Policy::template X<kStep>(x[m] + line * Policy::kXBytes);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      const auto weights = Policy::template Weights<kStep>(w[p] + line * kLineBytes);
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) sums[m][p] = Policy::Accumulate(sums[m][p], values[m], weights);
    }
  }
}

// sums[(p * sum_rows + m) * 16 ..] over lines [begin, end); they start at zero when begin is 0.
template <class Policy, int M, int P>
void Tile(const std::byte* const* x_rows, const std::byte* const* panels, int64_t begin,
          int64_t end, const Prefetch& prefetch, float* sums_memory, int64_t sum_rows) {
  const std::byte* x[M];
  const std::byte* w[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) w[p] = panels[p];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      sums[m][p] = begin == 0 ? Zero() : Load(sums_memory + (p * sum_rows + m) * kLanes);
    }
  }
  int64_t ahead = prefetch.offset;
  const int64_t step = prefetch.step;
  int64_t line = begin;
  for (int64_t stop = MinOf(MaxOf(prefetch.jump_line, begin), end);; stop = end) {
    for (; line < stop; ++line, ahead += step) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) __builtin_prefetch(w[p] + ahead);
      TileStep<Policy, M, P, 0>(x, w, line, sums);
      if constexpr (Policy::kSteps == 2) TileStep<Policy, M, P, 1>(x, w, line, sums);
    }
    if (line == end) break;
    ahead += prefetch.jump;
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(sums_memory + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

// Runs tiles of M rows over `panels` panels.
template <class Policy, int M>
void TileRow(const std::byte* const* x, const std::byte* const* w, int64_t panels, int64_t begin,
             int64_t end, const Prefetch& prefetch, float* sums, int64_t sum_rows) {
  constexpr int kPanels = TilePanels(M);
  int64_t p = 0;
  const int64_t stride = sum_rows * kLanes;
  for (; p + kPanels <= panels; p += kPanels) {
    Tile<Policy, M, kPanels>(x, w + p, begin, end, prefetch, sums + p * stride, sum_rows);
  }
  if constexpr (kPanels > 4) {
    for (; p + 4 <= panels; p += 4) {
      Tile<Policy, M, 4>(x, w + p, begin, end, prefetch, sums + p * stride, sum_rows);
    }
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= panels; p += 2) {
      Tile<Policy, M, 2>(x, w + p, begin, end, prefetch, sums + p * stride, sum_rows);
    }
  }
  for (; p < panels; ++p) {
    Tile<Policy, M, 1>(x, w + p, begin, end, prefetch, sums + p * stride, sum_rows);
  }
}

template <class Policy, int M = kMaxTileRows>
void TileRows(int64_t m, const std::byte* const* x, const std::byte* const* w, int64_t panels,
              int64_t begin, int64_t end, const Prefetch& prefetch, float* sums, int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) {
      return TileRows<Policy, M - 1>(m, x, w, panels, begin, end, prefetch, sums, sum_rows);
    }
  }
  TileRow<Policy, M>(x, w, panels, begin, end, prefetch, sums, sum_rows);
}

// Products of bf16 and f32 weights for MatmulOf and GateUpOf.
template <class Policy, ActivationType kType>
struct FloatProduct : PlainRows<96> {
  static constexpr ActivationType kActivations = kType;
  static constexpr int64_t kTileRows = kMaxTileRows;
  // The sums of a chunk of rows fit in half of a level 1 cache beside two panels' share of a block
  // of k (256 lines, 32 KiB): weights are then read once per chunk and not once per tile.
  using PlainRows<96>::kChunkRows;
  static constexpr int64_t kBlockLines = 256;
  static constexpr int64_t kMaxColumns = 8;
  static constexpr int64_t kLargeColumns = 2;
  static_assert(kChunkRows % kMaxTileRows == 0);
  static_assert(kMaxTileRows * TilePanels(kMaxTileRows) <= kChunkRows * kLargeColumns);

  // Even, so that gate and up share a pass.
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) {
    if (m > kMaxTileRows) return kLargeColumns;
    int64_t columns = kLargeColumns;
    if (m <= 2) {
      columns = kMaxColumns;
    } else if (m <= kMaxTileRows / 2) {
      columns = 2 * kLargeColumns;
    }
    return columns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    const int64_t lines = shape.lines;
    if (m <= kMaxTileRows) {
      const Prefetch prefetch = {kPrefetchLines * kLineBytes, kLineBytes, lines - kPrefetchLines,
                                 next_bytes - lines * kLineBytes};
      TileRows<Policy>(m, x, w, columns, 0, lines, prefetch, sums, m);
      return;
    }
    const int64_t blocks = CeilDiv(m, kMaxTileRows);
    int64_t begin = 0;
    do {
      const int64_t end = MinOf(begin + kBlockLines, lines);
      // The tiles of one block of k share the work of prefetching the next block.
      const int64_t next = end < lines ? end * kLineBytes : next_bytes;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = block * m / blocks;
        const int64_t last = (block + 1) * m / blocks;
        const Prefetch prefetch = {next + block * kBlockLines * kLineBytes / blocks,
                                   kLineBytes / blocks, end, 0};
        TileRows<Policy>(last - first, x + first, w, columns, begin, end, prefetch,
                         sums + first * kLanes, m);
      }
      begin = end;
    } while (begin < lines);
  }
};

}  // namespace
}  // namespace moesaic
