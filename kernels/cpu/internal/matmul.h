// Matrix products on packed panels. Included after Vec16 and math.h.
//
// A tile of M rows and P panels keeps M * P accumulators in registers; lanes are outputs. Each
// accumulator is one chain of multiply-adds in ascending k whatever M and P are, and storing it
// between two blocks of k is exact, so the shape of the tiles never changes a bit.
#pragma once

#include "kernels/cpu/internal/math.h"

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

// Rows are taken in chunks whose sums fit in half of a level 1 cache beside two panels' share of a
// block of k (256 lines, 32 KiB): weights are then read once per chunk and not once per tile.
constexpr int64_t kChunkRows = 96;
constexpr int64_t kBlockLines = 256;
constexpr int64_t kMaxColumns = 8;
constexpr int64_t kLargeColumns = 2;
static_assert(kChunkRows % kMaxTileRows == 0);
static_assert(kMaxTileRows * TilePanels(kMaxTileRows) <= kChunkRows * kLargeColumns);

// Panels that one pass over `m` rows computes; even, so that gate and up share a pass.
MOESAIC_INLINE int64_t ColumnsFor(int64_t m) {
  if (m > kMaxTileRows) return kLargeColumns;
  int64_t columns = kLargeColumns;
  if (m <= 2) {
    columns = kMaxColumns;
  } else if (m <= kMaxTileRows / 2) {
    columns = 2 * kLargeColumns;
  }
  return columns;
}

// First row of a chunk of `m` rows: chunks are about equal, and all but the last consist of the
// tallest tiles, which are the fastest.
MOESAIC_INLINE int64_t ChunkBegin(int64_t m, int64_t chunk, int64_t chunks) {
  return MinOf(chunk * CeilDiv(m, kMaxTileRows) / chunks * kMaxTileRows, m);
}

// sums[(column * m + row) * 16 ..] for m <= kChunkRows rows. The pass after this one takes panels
// that begin `next_bytes` further on.
template <class Policy>
void ComputeColumns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                    int64_t columns, int64_t lines, int64_t next_bytes, float* sums) {
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

template <class Policy>
void MatmulOf(const MatmulArgs& args) {
  alignas(64) float sums[kChunkRows * kLargeColumns * kLanes];
  const std::byte* x[kChunkRows];
  const std::byte* w[kMaxColumns];
  const int64_t lines = PanelLines(args.w.type, args.w.k);
  const int64_t chunks = CeilDiv(args.m, kChunkRows);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t row = ChunkBegin(args.m, chunk, chunks);
    const int64_t m = ChunkBegin(args.m, chunk + 1, chunks) - row;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t from = args.x_rows != nullptr ? args.x_rows[row + r] : row + r;
      x[r] = args.x + from * args.x_stride_bytes;
    }
    const int64_t step = ColumnsFor(m);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += step) {
      const int64_t columns = MinOf(args.panel_end - panel, step);
      for (int64_t c = 0; c < columns; ++c) w[c] = args.w.data + (panel + c) * lines * kLineBytes;
      ComputeColumns<Policy>(x, m, w, columns, lines, step * lines * kLineBytes, sums);
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t output = (panel + c) * kLanes;
        const int64_t lanes = MinOf(args.w.n - output, kLanes);
        const Vec16 bias = args.bias != nullptr ? LoadFirst(args.bias + output, lanes) : Zero();
        for (int64_t r = 0; r < m; ++r) {
          const int64_t to = args.y_rows != nullptr ? args.y_rows[row + r] : row + r;
          float* y = args.y + to * args.y_stride + output;
          Vec16 sum = Load(sums + (c * m + r) * kLanes);
          if (args.bias != nullptr) sum = Add(sum, bias);
          if (lanes == kLanes) {
            Store(y, sum);
          } else {
            StoreFirst(y, lanes, sum);
          }
        }
      }
    }
  }
}

// The unit of a row's padding: 16 bf16.
struct Padding {
  std::byte zeros[32] = {};
};

template <class Policy, ActivationType kActivations>
void GateUpOf(const GateUpArgs& args) {
  constexpr int64_t kElementBytes = kActivations == ActivationType::kF32 ? 4 : 2;
  alignas(64) float sums[kChunkRows * kLargeColumns * kLanes];
  const std::byte* x[kChunkRows];
  const std::byte* w[kMaxColumns];
  const int64_t lines = PanelLines(args.gate.type, args.gate.k);
  const int64_t panels = CeilDiv(args.gate.n, kLanes);
  const int64_t row_bytes = ActivationRowBytes(kActivations, args.gate.n);
  const int64_t chunks = CeilDiv(args.m, kChunkRows);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t row = ChunkBegin(args.m, chunk, chunks);
    const int64_t m = ChunkBegin(args.m, chunk + 1, chunks) - row;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t from = args.x_rows != nullptr ? args.x_rows[row + r] : row + r;
      x[r] = args.x + from * args.x_stride_bytes;
    }
    const int64_t step = ColumnsFor(m) / 2;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += step) {
      const int64_t pairs = MinOf(args.panel_end - panel, step);
      for (int64_t c = 0; c < pairs; ++c) {
        w[2 * c] = args.gate.data + (panel + c) * lines * kLineBytes;
        w[2 * c + 1] = args.up.data + (panel + c) * lines * kLineBytes;
      }
      ComputeColumns<Policy>(x, m, w, 2 * pairs, lines, step * lines * kLineBytes, sums);
      for (int64_t c = 0; c < pairs; ++c) {
        const int64_t output = (panel + c) * kLanes;
        const int64_t lanes = MinOf(args.gate.n - output, kLanes);
        for (int64_t r = 0; r < m; ++r) {
          std::byte* h = args.h + (row + r) * args.h_stride_bytes + output * kElementBytes;
          const Vec16 gate = Load(sums + (2 * c * m + r) * kLanes);
          const Vec16 up = Load(sums + ((2 * c + 1) * m + r) * kLanes);
          const Vec16 value = KeepRange(Mul(Silu(gate), up), 0, lanes, Zero());
          if constexpr (kActivations == ActivationType::kF32) {
            Store(h, value);
          } else {
            StoreBf16(h, value);
          }
        }
      }
    }
    if (args.panel_end == panels) {
      for (int64_t r = 0; r < m; ++r) {
        std::byte* h = args.h + (row + r) * args.h_stride_bytes;
        for (int64_t at = panels * kLanes * kElementBytes; at < row_bytes; at += 32) {
          StoreAs(h + at, Padding{});
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
