// bf16 products on tile registers. Included after Tiles.
//
// A step is 32 inputs; the instruction sums the even and the odd ones of a step in two chains of
// multiply-adds, adds the two and then adds that to the sum (Intel SDM, TDPBF16PS), with denormals
// taken for zero. That order is the class kAmxBf16; rows never mix, so that the bits of a row
// depend on nothing else. Few rows are multiplied by amx_order.h, in the same order.
#pragma once

#include "kernels/cpu/internal/amx_rows.h"

namespace moesaic {
namespace {

struct AmxBf16Product : EvenRows<AmxBf16Product> {
  static constexpr ActivationType kActivations = ActivationType::kBf16;
  static constexpr int64_t kChunkRows = 256;
  static constexpr int64_t kLargeColumns = 16;
  static constexpr int64_t kMaxColumns = 16;

  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    return CeilDiv(shape.lines, kStepLines) * kLineBytes;
  }
  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape&) { return kChunkRows; }
  // Rows that do not fit are copied in parts, each part once for so many panels.
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape& shape) {
    if (!Fits(m, shape)) return kMaxColumns;
    return m <= kChunkRows / 4 ? 8 : 2;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes,
                      std::byte* scratch, float* sums) {
    const AmxRows rows(m);
    Tiles::Configure(rows.tile_rows, kLineBytes, kStepLines);
    alignas(64) float last_tiles[kMaxColumns * kTileFloats];
    Part part = {.rows = rows, .sums = sums, .last_tiles = last_tiles};
    const int64_t steps = CeilDiv(shape.lines, kStepLines);
    const int64_t ahead = columns > 2 ? w[2] - w[0] : next_bytes;
    const bool fits = Fits(m, shape);
    const int64_t part_steps = fits ? steps : PartLines(m, kBlockSteps);
    const std::byte* copies[kChunkRows];
    while (part.end < steps) {
      part.begin = part.end;
      part.end = MinOf(part.begin + part_steps, steps);
      if (!fits) CopyPart(x, m, part.begin, part.end, part_steps, scratch, copies);
      // After the last panels of a part come the first ones of the next part, or of the next call.
      int64_t next = ahead - part.begin * kStepBytes;
      if (part.end < steps) {
        next = w[0] - w[(columns - 1) / 2 * 2] + (part.end - part.begin) * kStepBytes;
      }
      AddPart(fits ? x : copies, part, w, columns, shape.lines, ahead, next);
    }
  }

 private:
  static constexpr int64_t kStepLines = 16;
  static constexpr int64_t kStepBytes = kStepLines * kLineBytes;
  // Two panels of a block of steps stay in a level 1 cache while rows pass by.
  static constexpr int64_t kBlockSteps = 8;
  static constexpr int64_t kTileFloats = kAmxRows * kLanes;

  // Steps [begin, end) of all rows and panels.
  struct Part {
    const AmxRows& rows;
    float* sums;
    float* last_tiles;  // [columns][kTileFloats]
    int64_t begin = 0;
    int64_t end = 0;
  };

  // Two panels on their way through all rows of a part.
  struct Pass {
    // The sums between blocks of steps: where they belong in the end, but for those of a last tile
    // that has rows of the one before. Rows of two tiles would be added twice.
    float* SumsOf(int64_t tile, int64_t panel, bool ended) const {
      const bool apart = !ended && tile + 1 == rows.tiles && rows.m % rows.tile_rows != 0;
      return apart ? last_tile + panel * kTileFloats
                   : sums + (panel * rows.m + rows.begin(tile)) * kLanes;
    }

    const AmxRows& rows;
    float* sums;
    float* last_tile;
    int64_t first_step;  // where the rows begin
    int64_t asked_lines;
    int64_t asked_end;  // of the panels after these
  };

  // `ahead`: from two panels to those whose lines are wanted after them; `next`: from the last two.
  static void AddPart(const std::byte* const* x, const Part& part, const std::byte* const* w,
                      int64_t columns, int64_t lines, int64_t ahead, int64_t next) {
    const int64_t stride = StrideOf(x, part.rows.m);
    if (stride == kUneven) {
      AddColumns<false>(x, stride, part, w, columns, lines, ahead, next);
    } else {
      AddColumns<true>(x, stride, part, w, columns, lines, ahead, next);
    }
  }

  template <bool kEven>
  static void AddColumns(const std::byte* const* x, int64_t stride, const Part& part,
                         const std::byte* const* w, int64_t columns, int64_t lines, int64_t ahead,
                         int64_t next) {
    const AmxRows& rows = part.rows;
    const int64_t block = rows.tiles > 2 ? kBlockSteps : part.end - part.begin;
    for (int64_t c = 0; c < columns; c += 2) {
      Pass pass{.rows = rows,
                .sums = part.sums + c * rows.m * kLanes,
                .last_tile = part.last_tiles + c * kTileFloats,
                .first_step = part.begin,
                .asked_lines = part.begin * kStepLines,
                .asked_end = MinOf(part.end * kStepLines, lines)};
      const int64_t to = c + 2 < columns ? ahead : next;
      for (int64_t step = part.begin; step < part.end; step += block) {
        ForAmxBlocks(rows.tiles, 0, MinOf<int64_t>(columns - c, 2),
                     [&]<int R, int P>(int64_t tile, int64_t) {
                       AddBlock<R, P, kEven>(x, stride, tile, w + c, lines, step,
                                             MinOf(step + block, part.end), to, pass);
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
      LoadX<0, kEven>(x0, stride, rows.tile_rows, (step - pass.first_step) * kLineBytes);
      Tiles::LoadWeights<0>(w0);
      if constexpr (P == 2) Tiles::LoadWeights<1>(w1);
      if constexpr (R == 2) {
        LoadX<1, kEven>(x1, stride, rows.tile_rows, (step - pass.first_step) * kLineBytes);
      }
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBf16<kRow, kPanel>(); });
    };
    // All steps share the work of asking for the next panels, line after line: this CPU fetches no
    // neighbours by itself (docs/experiments/kernels.md).
    const int64_t share = CeilDiv(R * kStepLines, rows.tiles);
    const int64_t whole_end = MinOf(end, lines / kStepLines);
    for (int64_t step = begin; step < whole_end; ++step) {
      const std::byte* w0 = w[0] + step * kStepBytes;
      const std::byte* w1 = P == 2 ? w[1] + step * kStepBytes : nullptr;
      const int64_t asked_end = MinOf(pass.asked_lines + share, pass.asked_end);
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

}  // namespace
}  // namespace moesaic
