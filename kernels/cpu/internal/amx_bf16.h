// Products of bf16 weights, plain and coded ones, on tile registers. Included after Tiles and
// DecodeHalf (coded_*.h).
//
// A step is 32 inputs; the instruction sums the even and the odd ones of a step in two chains of
// multiply-adds, adds the two and then adds that to the sum (Intel SDM, TDPBF16PS), with denormals
// taken for zero. That order is the class kAmxBf16; rows never mix, so that the bits of a row
// depend on nothing else. Few rows are multiplied by amx_order.h, in the same order.
//
// Coded weights become the lines of plain ones in a level 1 cache, once for all rows of a call and
// ahead of the tiles that are loaded from there (amx_coded.h).
#pragma once

#include "kernels/cpu/internal/amx_coded.h"
#include "kernels/cpu/internal/amx_rows.h"

namespace moesaic {
namespace {

template <bool kCoded>
struct AmxBf16ProductOf : EvenRows<AmxBf16ProductOf<kCoded>> {
  using Rows = EvenRows<AmxBf16ProductOf>;
  static constexpr ActivationType kActivations = ActivationType::kBf16;
  static constexpr int64_t kChunkRows = 256;
  static constexpr int64_t kLargeColumns = 16;
  static constexpr int64_t kMaxColumns = 16;

  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    return CeilDiv(shape.k, kAmxStepInputs) * kLineBytes;
  }
  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape&) { return kChunkRows; }
  // Rows that do not fit are copied in parts, each part once for so many panels.
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape& shape) {
    if (!Rows::Fits(m, shape)) return kMaxColumns;
    return m <= kChunkRows / 4 ? 8 : 2;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes,
                      std::byte* scratch, float* sums) {
    const AmxRows rows(m);
    Tiles::Configure(rows.tile_rows, kLineBytes, kAmxStepLines);
    alignas(64) float last_tiles[kMaxColumns * kTileFloats];
    Panels panels(w, columns, shape.k);
    Part part = {.rows = rows, .shape = shape, .sums = sums, .last_tiles = last_tiles};
    const int64_t steps = CeilDiv(shape.k, kAmxStepInputs);
    const int64_t ahead = columns > 2 ? w[2] - w[0] : next_bytes;
    const bool fits = Rows::Fits(m, shape);
    const int64_t part_steps = fits ? steps : Rows::PartLines(m, kBlockSteps);
    const std::byte* copies[kChunkRows];
    while (part.end < steps) {
      part.begin = part.end;
      part.end = MinOf(part.begin + part_steps, steps);
      if (!fits) Rows::CopyPart(x, m, part.begin, part.end, part_steps, scratch, copies);
      // After the last panels of a part come the first ones of the next part, or of the next call.
      int64_t next = ahead - LinesBefore(part.begin, shape) * kLineBytes;
      if (part.end < steps) {
        next = w[0] - w[(columns - 1) / 2 * 2] +
               (LinesBefore(part.end, shape) - LinesBefore(part.begin, shape)) * kLineBytes;
      }
      AddPart(fits ? x : copies, part, panels, w, columns, ahead, next);
    }
  }

 private:
  // Two panels of a block of steps stay in a level 1 cache while rows pass by.
  static constexpr int64_t kBlockSteps = kAmxBlockSteps;
  static constexpr int64_t kTileFloats = kAmxRows * kLanes;

  using Panels = AmxPanels<kCoded, kMaxColumns>;

  // Lines of a panel before this step.
  MOESAIC_INLINE static int64_t LinesBefore(int64_t step, const PanelShape& shape) {
    if constexpr (kCoded) {
      if (step == 0) return 0;
      const int64_t codes = step * (kAmxCodedSteps * kCodedStepBytes / kLineBytes);
      return MinOf(CodedHeadLines(shape.k) + codes, shape.lines);
    }
    return MinOf(step * kAmxStepLines, shape.lines);
  }

  // Steps [begin, end) of all rows and panels.
  struct Part {
    const AmxRows& rows;
    const PanelShape& shape;
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
    const PanelShape& shape;
    float* sums;
    float* last_tile;
    int64_t first_step;  // where the rows begin
    // Of the panels after these: the lines that a step of a tile of rows asks for.
    int64_t share;
    int64_t asked_lines;
    int64_t asked_end;
    AmxDecoding decoding = {};
  };

  // `ahead`: from two panels to those whose lines are wanted after them; `next`: from the last two.
  static void AddPart(const std::byte* const* x, const Part& part, Panels& panels,
                      const std::byte* const* w, int64_t columns, int64_t ahead, int64_t next) {
    const int64_t stride = StrideOf(x, part.rows.m);
    if (stride == kUneven) {
      AddColumns<false>(x, stride, part, panels, w, columns, ahead, next);
    } else {
      AddColumns<true>(x, stride, part, panels, w, columns, ahead, next);
    }
  }

  template <bool kEven>
  static void AddColumns(const std::byte* const* x, int64_t stride, const Part& part,
                         Panels& panels, const std::byte* const* w, int64_t columns, int64_t ahead,
                         int64_t next) {
    const AmxRows& rows = part.rows;
    const bool in_blocks = rows.tiles > 2;
    const int64_t steps = part.end - part.begin;
    const int64_t block = in_blocks ? kBlockSteps : steps;
    const int64_t asked_lines = LinesBefore(part.begin, part.shape);
    const int64_t asked_end = LinesBefore(part.end, part.shape);
    for (int64_t c = 0; c < columns; c += 2) {
      Pass pass{.rows = rows,
                .shape = part.shape,
                .sums = part.sums + c * rows.m * kLanes,
                .last_tile = part.last_tiles + c * kTileFloats,
                .first_step = part.begin,
                .share = CeilDiv(asked_end - asked_lines, steps * rows.tiles),
                .asked_lines = asked_lines,
                .asked_end = asked_end};
      if constexpr (kCoded) {
        pass.decoding = {.panels = panels.panels + c,
                         .ring = panels.ring,
                         .slots = in_blocks ? 2 * kBlockSteps : 4,
                         .whole = CeilDiv(part.shape.k, kCodedInputs),
                         .end = part.end * kAmxCodedSteps,
                         .done = part.begin * kAmxCodedSteps,
                         .points = 4 * kBlockSteps * CeilDiv(rows.tiles, 2)};
      }
      const int64_t to = c + 2 < columns ? ahead : next;
      for (int64_t step = part.begin; step < part.end; step += block) {
        ForAmxBlocks(rows.tiles, 0, MinOf<int64_t>(columns - c, 2),
                     [&]<int R, int P>(int64_t tile, int64_t) {
                       AddBlock<R, P, kEven>(x, stride, tile, w + c, step,
                                             MinOf(step + block, part.end), to, pass);
                     });
      }
    }
  }

  // Adds steps [begin, end) to the sums of R tiles of rows and P panels.
  template <int R, int P, bool kEven>
  static void AddBlock(const std::byte* const* x, int64_t stride, int64_t tile,
                       const std::byte* const* w, int64_t begin, int64_t end, int64_t ahead,
                       Pass& pass) {
    const AmxRows& rows = pass.rows;
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      if (begin == 0) return Tiles::ZeroSums<kRow, kPanel>();
      Tiles::LoadSums<kRow, kPanel>(pass.SumsOf(tile + kRow, kPanel, false));
    });
    const std::byte* const* x0 = x + rows.begin(tile);
    const std::byte* const* x1 = R == 2 ? x + rows.begin(tile + 1) : x0;
    // between(): other work, a little at a time, so that it is near what it runs beside.
    const auto add = [&](int64_t step, const std::byte* w0, const std::byte* w1,
                         const auto& between) MOESAIC_BODY {
      const int64_t at = (step - pass.first_step) * kLineBytes;
      Rows::template LoadX<0, kEven>(x0, stride, rows.tile_rows, at);
      Tiles::LoadWeights<0>(w0);
      Tiles::DotBf16<0, 0>();
      between();
      if constexpr (P == 2) {
        Tiles::LoadWeights<1>(w1);
        Tiles::DotBf16<0, 1>();
      }
      between();
      if constexpr (R == 2) {
        Rows::template LoadX<1, kEven>(x1, stride, rows.tile_rows, at);
        Tiles::DotBf16<1, 0>();
      }
      between();
      if constexpr (R == 2 && P == 2) Tiles::DotBf16<1, 1>();
      between();
    };
    // All steps share the work of asking for the next panels, line after line: this CPU fetches no
    // neighbours by itself (docs/experiments/kernels.md).
    const int64_t share = R * pass.share;
    const auto ask = [&]() MOESAIC_BODY {
      const int64_t asked_end = MinOf(pass.asked_lines + share, pass.asked_end);
      for (; pass.asked_lines < asked_end; ++pass.asked_lines) {
        const int64_t offset = ahead + pass.asked_lines * kLineBytes;
        PrefetchLevel2(w[0] + offset);
        if constexpr (P == 2) PrefetchLevel2(w[1] + offset);
      }
    };
    if constexpr (kCoded) {
      constexpr int64_t kStepsAhead = 2;
      AmxDecoder<P> decoder(pass.decoding);
      // A block that no tile before has decoded, at a step a step.
      const bool fresh = rows.tiles <= 2 || begin == pass.first_step;
      if (tile == 0) decoder.DecodeBefore(fresh ? begin + kStepsAhead : end);
      for (int64_t step = begin; step < end; ++step) {
        ask();
        const std::byte* const w0 = decoder.Step(step, 0);
        const std::byte* const w1 = decoder.Step(step, P - 1);
        if (tile == 0 && fresh) {
          const int64_t last = rows.tiles <= 2 ? end : end + kAmxBlockSteps;
          add(step, w0, w1, [&]() MOESAIC_BODY { decoder.DecodeNext(last); });
        } else {
          add(step, w0, w1, [&]() MOESAIC_BODY { decoder.DecodeShare(end + kAmxBlockSteps); });
        }
      }
      decoder.Save(pass.decoding);
    } else {
      const int64_t lines = pass.shape.lines;
      const int64_t whole_end = MinOf(end, lines / kAmxStepLines);
      for (int64_t step = begin; step < whole_end; ++step) {
        ask();
        add(step, w[0] + step * kAmxStepBytes, w[P - 1] + step * kAmxStepBytes, [] {});
      }
      if (whole_end < end) {
        alignas(64) std::byte last_step[P][kAmxStepBytes] = {};
        const auto rest = static_cast<size_t>(lines % kAmxStepLines * kLineBytes);
        for (int p = 0; p < P; ++p) {
          __builtin_memcpy(last_step[p], w[p] + whole_end * kAmxStepBytes, rest);
        }
        add(whole_end, last_step[0], last_step[P - 1], [] {});
      }
    }
    const bool ended = end == CeilDiv(pass.shape.k, kAmxStepInputs);
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      Tiles::StoreSums<kRow, kPanel>(pass.SumsOf(tile + kRow, kPanel, ended));
    });
  }
};

using AmxBf16Product = AmxBf16ProductOf<false>;
using AmxCodedProduct = AmxBf16ProductOf<true>;

}  // namespace
}  // namespace moesaic
