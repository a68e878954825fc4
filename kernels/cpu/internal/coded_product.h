// Products with coded bf16 weights (PackedMatrix, kBf16Coded). Included after Vec16, DecodeHalf
// (coded_*.h), math.h and tiles.h.
//
// Three lines become four of bf16, which are multiplied as those are (tiles.h): each accumulator is
// the same chain of the same operations in ascending k, so that a product has the bits of the one
// with plain bf16 weights. Few rows are multiplied with weights in registers. For more, a block of
// two panels becomes lines of bf16 once for all rows of a chunk, while the first tile of rows is
// multiplied with it: a step is decoded while the one before it is multiplied, by units that have
// nothing to do then.
#pragma once

#include "kernels/cpu/internal/coded_lines.h"
#include "kernels/cpu/internal/fp8_product.h"
#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"
#include "kernels/cpu/internal/tiles.h"

namespace moesaic {
namespace {

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
MOESAIC_INLINE void AddCodedHalf(const std::byte* const (&x)[M], const CodedPanel (&panels)[P],
                                 int64_t step, int64_t ahead, Vec16 (&sums)[M][P]) {
  const int64_t x_offset = (step * kCodedStepLines + 2 * kHalf) * Policy::kXBytes;
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    PairLine first;
    PairLine second;
    const std::byte* const data = panels[p].data;
    PrefetchLevel2(data + ahead + 2 * kHalf * kLineBytes);
    if constexpr (kHalf == 0) PrefetchLevel2(data + ahead + kLineBytes);
    DecodeHalf<kHalf>(data + step * kCodedStepBytes, panels[p].head, first, second);
    AddCodedLine<Policy, M, P>(x, x_offset, first, p, sums);
    AddCodedLine<Policy, M, P>(x, x_offset + Policy::kXBytes, second, p, sums);
  }
}

// sums[(p * sum_rows + m) * 16 ..] of M rows and P panels. `next_bytes` further on begin the panels
// that come after these.
template <class Policy, int M, int P>
void CodedTile(const std::byte* const* x_rows, const std::byte* const* w, int64_t k,
               int64_t next_bytes, float* out, int64_t sum_rows) {
  const int64_t lines = CeilDiv(k, 2);
  const int64_t whole = lines / kCodedStepLines;
  const std::byte* x[M];
  CodedPanel panels[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    panels[p] = CodedPanelAt(w[p], k);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) sums[m][p] = Zero();
  }
  // `count` lines of a step by way of memory.
  const auto add_slowly = [&](int64_t step, int64_t count) MOESAIC_BODY {
    alignas(64) std::byte decoded[P][kPlainStepBytes];
    const std::byte* at[P];
    const std::byte* x_at[M];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) x_at[m] = x[m] + step * kCodedStepLines * Policy::kXBytes;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      panels[p].Decode(step, decoded[p]);
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
      for (int p = 0; p < P; ++p) PrefetchLevel2(w[p] + next_bytes);
    }
    if (step == whole) break;
    int64_t stop = jumped ? whole : jump;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) stop = MinOf(stop, panels[p].rest.NextStep());
    if (stop <= step) {
      add_slowly(step, kCodedStepLines);
      ++step;
      ahead += kCodedStepBytes;
    }
    for (; step < stop; ++step, ahead += kCodedStepBytes) {
      AddCodedHalf<0, Policy, M, P>(x, panels, step, ahead, sums);
      AddCodedHalf<1, Policy, M, P>(x, panels, step, ahead, sums);
    }
  }
  if (lines % kCodedStepLines != 0) add_slowly(whole, lines % kCodedStepLines);
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

// Lines [begin, end) of bf16 of some panels, on their way into memory.
struct CodedBlock {
  int64_t begin;  // a multiple of kCodedStepLines
  int64_t end;
  int64_t steps;       // of a whole panel
  int64_t next_bytes;  // from a panel to the one that comes after it
};

// Decodes a block of P panels, to lines of bf16 at `decoded`, and adds its products with M rows,
// which are given from line `begin` on, to their sums.
template <class Policy, int M, int P>
void CodedFirstTile(const std::byte* const* x_rows, const CodedBlock& block, CodedPanel* states,
                    std::byte* const* decoded, float* sums_memory, int64_t sum_rows) {
  const std::byte* x[M];
  CodedPanel panels[P];  // a copy that no store to memory can change
  const std::byte* w[P];
  std::byte* to[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    panels[p] = states[p];
    w[p] = to[p] = decoded[p];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      sums[m][p] = block.begin == 0 ? Zero() : Load(sums_memory + (p * sum_rows + m) * kLanes);
    }
  }
  const auto multiply = [&](int64_t line) MOESAIC_BODY {
    TileStep<Policy, M, P, 0>(x, w, line, sums);
    if constexpr (Policy::kSteps == 2) TileStep<Policy, M, P, 1>(x, w, line, sums);
  };
  const int64_t first = block.begin / kCodedStepLines;
  const int64_t last = CeilDiv(block.end, kCodedStepLines) - 1;
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    panels[p].AskFor(first, block.steps, block.next_bytes);
    panels[p].Decode(first, to[p]);
  }
  int64_t line = 0;
  for (int64_t step = first + 1; step <= last; ++step) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      to[p] += kPlainStepBytes;
      panels[p].AskFor(step, block.steps, block.next_bytes);
      panels[p].Decode(step, to[p]);
    }
    // A loop, so that its registers are for rows: what is decoded with need not be in any.
    const int64_t end = line + kCodedStepLines;
    for (; line < end; ++line) multiply(line);
  }
  for (; line < block.end - block.begin; ++line) multiply(line);
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    states[p] = panels[p];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) Store(sums_memory + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

// More rows than are multiplied in registers, or a first tile of several of about the same height.
constexpr int kLeastFirstRows =
    kCodedDirectRows < kMaxTileRows / 2 ? kCodedDirectRows + 1 : (kMaxTileRows + 1) / 2;

template <class Policy, int M = kMaxTileRows>
void CodedFirstTiles(int64_t m, const std::byte* const* x, const CodedBlock& block,
                     CodedPanel* panels, std::byte* const* decoded, int64_t columns, float* sums,
                     int64_t sum_rows) {
  if constexpr (M > kLeastFirstRows) {
    if (m < M) {
      return CodedFirstTiles<Policy, M - 1>(m, x, block, panels, decoded, columns, sums, sum_rows);
    }
  }
  constexpr int kPanels = TilePanels(M) < 2 ? 1 : 2;
  const int64_t stride = sum_rows * kLanes;
  int64_t c = 0;
  for (; c + kPanels <= columns; c += kPanels) {
    CodedFirstTile<Policy, M, kPanels>(x, block, panels + c, decoded + c, sums + c * stride,
                                       sum_rows);
  }
  if constexpr (kPanels > 1) {
    for (; c < columns; ++c) {
      CodedFirstTile<Policy, M, 1>(x, block, panels + c, decoded + c, sums + c * stride, sum_rows);
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
  static_assert(kChunkRows % kTileRows == 0 && kBlockLines % kCodedStepLines == 0);
  static_assert(kCodedDirectRows * kMaxColumns <= kChunkRows * kLargeColumns);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) {
    return m <= kCodedDirectRows ? kMaxColumns : kLargeColumns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    const int64_t k = shape.k;
    if (m <= kCodedDirectRows) return CodedTiles<Policy>(m, x, w, columns, k, next_bytes, sums);
    // A line before each block, so that a tile that goes on with sums can begin at line 1 (Tile).
    alignas(64) std::byte decoded[kLargeColumns][(1 + kBlockLines) * kLineBytes];
    CodedPanel panels[kLargeColumns];
    std::byte* to[kLargeColumns];
    for (int64_t c = 0; c < columns; ++c) {
      panels[c] = CodedPanelAt(w[c], k);
      to[c] = decoded[c] + kLineBytes;
    }
    const int64_t lines = CeilDiv(k, 2);
    const int64_t tiles = CeilDiv(m, kTileRows);
    for (int64_t begin = 0; begin < lines; begin += kBlockLines) {
      const CodedBlock block = {begin, MinOf(begin + kBlockLines, lines),
                                CeilDiv(lines, kCodedStepLines), next_bytes};
      const std::byte* rows[kChunkRows];
      for (int64_t r = 0; r < m; ++r) rows[r] = x[r] + begin * Policy::kXBytes;
      CodedFirstTiles<Policy>(m / tiles, rows, block, panels, to, columns, sums, m);
      if (tiles == 1) continue;
      const int64_t skipped = begin == 0 ? 0 : 1;
      const std::byte* from[kLargeColumns];
      for (int64_t c = 0; c < columns; ++c) from[c] = to[c] - skipped * kLineBytes;
      for (int64_t r = m / tiles; r < m; ++r) rows[r] -= skipped * Policy::kXBytes;
      for (int64_t tile = 1; tile < tiles; ++tile) {
        const int64_t first = tile * m / tiles;
        TileRows<Policy>((tile + 1) * m / tiles - first, rows + first, from, columns, skipped,
                         block.end - begin + skipped, {}, sums + first * kLanes, m);
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
