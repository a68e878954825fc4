// Products with coded bf16 weights (PackedMatrix, kBf16Coded). Included after Vec16, DecodeHalf
// (coded_*.h), math.h and tiles.h.
//
// Three lines become four of bf16, which are multiplied as those are (tiles.h): each accumulator is
// the same chain of the same operations in ascending k, so that a product has the bits of the one
// with plain bf16 weights. Few rows are multiplied with weights in registers. For more, a block of
// two panels becomes lines of bf16 once for all rows of a chunk.
#pragma once

#include "kernels/cpu/internal/coded_layout.h"
#include "kernels/cpu/internal/fp8_product.h"
#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"
#include "kernels/cpu/internal/tiles.h"

namespace moesaic {
namespace {

// How far ahead of its use a panel is asked for, each line once and into the level 2 cache, as
// gguf_row.h found it best.
constexpr int64_t kCodedStepsAhead = (12 << 10) / kCodedStepBytes;

// Adds the products with one decoded line of panel p.
template <class Policy, int M, int P>
MOESAIC_INLINE void AddCodedLine(const std::byte* const (&x)[M], int64_t x_offset,
                                 const PairLine& line, int p, Vec16 (&sums)[M][P]) {
  const auto step = [&]<int kStep>() MOESAIC_BODY {
    const auto weights = WeightsOf<Policy, kStep>(line);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      const auto value = Policy::template X<kStep>(x[m] + x_offset);
      sums[m][p] = Policy::Accumulate(sums[m][p], value, weights);
    }
  };
  step.template operator()<0>();
  if constexpr (Policy::kSteps == 2) step.template operator()<1>();
}

template <int kHalf, class Policy, int M, int P>
MOESAIC_INLINE void AddCodedHalf(const std::byte* const (&x)[M],
                                 const std::byte* const (&panels)[P],
                                 const std::byte* const (&data)[P], int64_t step, int64_t ahead,
                                 Vec16 (&sums)[M][P]) {
  const int64_t x_offset = (step * kStepLines + 2 * kHalf) * Policy::kXBytes;
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    PairLine first;
    PairLine second;
    PrefetchLevel2(data[p] + ahead + 2 * kHalf * kLineBytes);
    if constexpr (kHalf == 0) PrefetchLevel2(data[p] + ahead + kLineBytes);
    DecodeHalf<kHalf>(data[p] + step * kCodedStepBytes, panels[p], first, second);
    AddCodedLine<Policy, M, P>(x, x_offset, first, p, sums);
    AddCodedLine<Policy, M, P>(x, x_offset + Policy::kXBytes, second, p, sums);
  }
}

// Step `step` of a panel as lines of bf16 in memory, with its exceptions.
MOESAIC_INLINE void DecodeStep(const std::byte* panel, const std::byte* data, int64_t step,
                               CodedExceptions& rest, std::byte* to) {
  PairLine lines[kStepLines];
  DecodeHalf<0>(data + step * kCodedStepBytes, panel, lines[0], lines[1]);
  DecodeHalf<1>(data + step * kCodedStepBytes, panel, lines[2], lines[3]);
  MOESAIC_UNROLL
  for (int line = 0; line < kStepLines; ++line) StoreLine(to + line * kLineBytes, lines[line]);
  rest.Patch(step, to);
}

// sums[(p * sum_rows + m) * 16 ..] of M rows and P panels. `next_bytes` further on begin the panels
// that come after these.
template <class Policy, int M, int P>
void CodedTile(const std::byte* const* x_rows, const std::byte* const* w, int64_t k,
               int64_t next_bytes, float* out, int64_t sum_rows) {
  const int64_t head_bytes = CodedHeadLines(k) * kLineBytes;
  const int64_t lines = CeilDiv(k, 2);
  const int64_t whole = lines / kStepLines;
  const std::byte* x[M];
  const std::byte* panels[P];
  const std::byte* data[P];
  CodedExceptions rest[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    panels[p] = w[p];
    data[p] = w[p] + head_bytes;
    rest[p] = ExceptionsOf(w[p], k);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) sums[m][p] = Zero();
  }
  // `count` lines of a step by way of memory.
  const auto add_slowly = [&](int64_t step, int64_t count) MOESAIC_BODY {
    alignas(64) std::byte decoded[P][kPlainStepBytes];
    const std::byte* at[P];
    const std::byte* x_at[M];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) x_at[m] = x[m] + step * kStepLines * Policy::kXBytes;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      DecodeStep(panels[p], data[p], step, rest[p], decoded[p]);
      at[p] = decoded[p];
    }
    for (int64_t line = 0; line < count; ++line) {
      TileStep<Policy, M, P, 0>(x_at, at, line, sums);
      if constexpr (Policy::kSteps == 2) TileStep<Policy, M, P, 1>(x_at, at, line, sums);
    }
  };
  const int64_t distance = MinOf(kCodedStepsAhead, whole);
  const int64_t jump = whole - distance;  // from here on the next panels are asked for
  bool jumped = false;
  int64_t ahead = distance * kCodedStepBytes;
  for (int64_t step = 0;;) {
    if (!jumped && step == jump) {
      jumped = true;
      ahead = next_bytes;
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) PrefetchLevel2(panels[p] + next_bytes);
    }
    if (step == whole) break;
    int64_t stop = jumped ? whole : jump;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) stop = MinOf(stop, rest[p].NextStep());
    if (stop <= step) {
      add_slowly(step, kStepLines);
      ++step;
      ahead += kCodedStepBytes;
    }
    for (; step < stop; ++step, ahead += kCodedStepBytes) {
      AddCodedHalf<0, Policy, M, P>(x, panels, data, step, ahead, sums);
      AddCodedHalf<1, Policy, M, P>(x, panels, data, step, ahead, sums);
    }
  }
  if (lines % kStepLines != 0) add_slowly(whole, lines % kStepLines);
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) Store(out + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

template <class Policy, int M = kCodedDirectRows>
void CodedTiles(int64_t m, const std::byte* const* x, const std::byte* const* w, int64_t panels,
                int64_t k, int64_t next_bytes, float* sums) {
  if constexpr (M > 1) {
    if (m < M) return CodedTiles<Policy, M - 1>(m, x, w, panels, k, next_bytes, sums);
  }
  constexpr int kPanels = CodedTilePanels(M);
  // From the panels at p to those after the next `count`.
  const auto to_next = [&](int64_t p, int64_t count) {
    return p + count < panels ? w[p + count] - w[p] : w[0] - w[p] + next_bytes;
  };
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    CodedTile<Policy, M, kPanels>(x, w + p, k, to_next(p, kPanels), sums + p * M * kLanes, M);
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= panels; p += 2) {
      CodedTile<Policy, M, 2>(x, w + p, k, to_next(p, 2), sums + p * M * kLanes, M);
    }
  }
  if constexpr (kPanels > 1) {
    for (; p < panels; ++p) {
      CodedTile<Policy, M, 1>(x, w + p, k, to_next(p, 1), sums + p * M * kLanes, M);
    }
  }
}

// For MatmulOf and GateUpOf.
template <class Policy, ActivationType kType>
struct CodedProduct : PlainRows<192> {
  static constexpr ActivationType kActivations = kType;
  static constexpr int64_t kTileRows = kMaxTileRows;
  static constexpr int64_t kMaxColumns = 8;
  static constexpr int64_t kLargeColumns = 2;
  // Lines of bf16 of a block: two panels' share stays in a level 1 cache.
  static constexpr int64_t kBlockLines = 128;
  using PlainRows<192>::kChunkRows;
  static_assert(kChunkRows % kTileRows == 0 && kBlockLines % kStepLines == 0);
  static_assert(kCodedDirectRows * kMaxColumns <= kChunkRows * kLargeColumns);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) {
    return m <= kCodedDirectRows ? kMaxColumns : kLargeColumns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    const int64_t k = shape.k;
    if (m <= kCodedDirectRows) return CodedTiles<Policy>(m, x, w, columns, k, next_bytes, sums);
    // A line before each block, so that one that goes on with sums can begin at line 1 (Tile).
    alignas(64) std::byte decoded[kLargeColumns][(1 + kBlockLines) * kLineBytes];
    const int64_t head_bytes = CodedHeadLines(k) * kLineBytes;
    const int64_t lines = CeilDiv(k, 2);
    const int64_t tiles = CeilDiv(m, kTileRows);
    CodedExceptions rest[kLargeColumns];
    for (int64_t c = 0; c < columns; ++c) rest[c] = ExceptionsOf(w[c], k);
    for (int64_t begin = 0; begin < lines; begin += kBlockLines) {
      const int64_t end = MinOf(begin + kBlockLines, lines);
      const int64_t skipped = begin == 0 ? 0 : 1;
      const std::byte* panels[kLargeColumns];
      const std::byte* rows[kChunkRows];
      for (int64_t c = 0; c < columns; ++c) {
        // What is decoded next, here or in the panels that come then.
        const std::byte* const data = w[c] + head_bytes;
        const int64_t ahead = end < lines ? kBlockLines / kStepLines * kCodedStepBytes
                                          : next_bytes - begin / kStepLines * kCodedStepBytes;
        if (end == lines) PrefetchLevel2(w[c] + next_bytes);
        std::byte* to = decoded[c] + kLineBytes;
        for (int64_t step = begin / kStepLines; step < CeilDiv(end, kStepLines); ++step) {
          const std::byte* const next = data + step * kCodedStepBytes + ahead;
          PrefetchLevel2(next);
          PrefetchLevel2(next + kLineBytes);
          PrefetchLevel2(next + 2 * kLineBytes);
          DecodeStep(w[c], data, step, rest[c], to);
          to += kPlainStepBytes;
        }
        panels[c] = decoded[c] + (1 - skipped) * kLineBytes;
      }
      for (int64_t r = 0; r < m; ++r) rows[r] = x[r] + (begin - skipped) * Policy::kXBytes;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile * m / tiles;
        TileRows<Policy>((tile + 1) * m / tiles - first, rows + first, panels, columns, skipped,
                         end - begin + skipped, {}, sums + first * kLanes, m);
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
