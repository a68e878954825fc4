// Products with GGUF's blocks and int8 activations (PackedMatrix, kGguf). Included after Vec16,
// ByteLine, Ints16 (ints_*.h) and math.h.
//
// The products of the 16 or 32 inputs of a scale are summed exactly, in integers below 2^24. For
// each 128 inputs, a group of activations, these sums times their scales, and the sums of
// activations times the addends, are added in f32, ascending, from zero; that times the scale of
// the activations is added to the output, groups ascending. So every instruction set, tile and
// range of panels gives the same bits.
#pragma once

#include "kernels/cpu/internal/gguf_row.h"
#include "kernels/cpu/internal/gguf_widen.h"
#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

// What a tile prefetches of each panel with each group of inputs.
struct GgufIntAhead {
  const std::byte* from[4];
  int64_t lines;
};

// Adds `inputs` products, from `first` on, to outs[p][m * 16 ..] of M rows and P panels.
template <int64_t kGroup, bool kAddends, int M, int P>
void GgufIntTile(const std::byte* const* x_rows, int64_t k, int64_t first, int64_t inputs,
                 const WidePanel* wide, const GgufIntAhead& ahead, float* const* outs) {
  const std::byte* next[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) next[p] = ahead.from[p];
  constexpr auto kGroupLines = static_cast<int>(kGroup / 4);
  for (int64_t base = 0; base < inputs; base += kQuantGroup) {
    const int8_t* x[M];
    const int32_t* corrections[M];
    Vec16 sums[M][P];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      x[m] = reinterpret_cast<const int8_t*>(x_rows[m]) + first + base;
      corrections[m] = reinterpret_cast<const int32_t*>(x_rows[m] + GroupSumsOffset(k, kGroup)) +
                       (first + base) / kGroup;
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) sums[m][p] = Zero();
    }
    const std::byte* w[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) w[p] = wide[p].lines + base / 4 * kLineBytes;
    const int64_t groups = MinOf(inputs - base, kQuantGroup) / kGroup;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t line = 0; line < ahead.lines; ++line) {
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) {
          __builtin_prefetch(next[p]);
          next[p] += kLineBytes;
        }
      }
      Ints16 dots[M][P];
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) {
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) dots[m][p] = StartOfGroup(kAddends ? 0 : corrections[m][g]);
      }
      MOESAIC_UNROLL
      for (int line = 0; line < kGroupLines; ++line) {
        WeightBytes weights[P];
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) {
          weights[p] =
              kAddends ? SmallBytes(w[p] + line * kLineBytes) : Bytes(w[p] + line * kLineBytes);
        }
        MOESAIC_UNROLL
        for (int m = 0; m < M; ++m) {
          const FourBytes four = LoadFour(x[m] + 4 * line);
          MOESAIC_UNROLL
          for (int p = 0; p < P; ++p) dots[m][p] = DotAdd(dots[m][p], weights[p], four);
        }
      }
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        const int64_t at = base / kGroup + g;
        const Vec16 scale = Load(wide[p].scales[at]);
        MOESAIC_UNROLL
        for (int m = 0; m < M; ++m) sums[m][p] = Fma(ToFloats(dots[m][p]), scale, sums[m][p]);
        if constexpr (kAddends) {
          const Vec16 addend = Load(wide[p].addends[at]);
          MOESAIC_UNROLL
          for (int m = 0; m < M; ++m) {
            sums[m][p] = Fma(Set(static_cast<float>(corrections[m][g])), addend, sums[m][p]);
          }
        }
      }
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) x[m] += kGroup;
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) w[p] += kGroupLines * kLineBytes;
    }
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      const auto* of =
          reinterpret_cast<const ActivationScale*>(x_rows[m] + ActivationScalesOffset(k));
      const Vec16 scale = Set(of[(first + base) / kQuantGroup].scale);
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        float* const out = outs[p] + m * kLanes;
        Store(out, Fma(sums[m][p], scale, Load(out)));
      }
    }
  }
}

template <int64_t kGroup, bool kAddends, int M = kGgufTileRows>
void GgufIntTileRows(int64_t m, int64_t panels, const std::byte* const* x, int64_t k, int64_t first,
                     int64_t inputs, const WidePanel* wide, GgufIntAhead ahead,
                     float* const* outs) {
  if constexpr (M > 1) {
    if (m < M) {
      return GgufIntTileRows<kGroup, kAddends, M - 1>(m, panels, x, k, first, inputs, wide, ahead,
                                                      outs);
    }
  }
  constexpr int kPanels = GgufTilePanels(M);
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    GgufIntTile<kGroup, kAddends, M, kPanels>(x, k, first, inputs, wide + p, ahead, outs + p);
  }
  if constexpr (kPanels > 1) {
    for (; p < panels; ++p) {
      ahead.from[0] = ahead.from[p];
      GgufIntTile<kGroup, kAddends, M, 1>(x, k, first, inputs, wide + p, ahead, outs + p);
    }
  }
}

// For MatmulOf and GateUpOf.
struct GgufIntProduct : PlainRows<48> {
  static constexpr ActivationType kActivations = ActivationType::kInt8Sums;
  static constexpr int64_t kTileRows = kGgufTileRows;
  static constexpr int64_t kLargeColumns = 4;
  static constexpr int64_t kMaxColumns = kLargeColumns;
  static_assert(kChunkRows % kTileRows == 0);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t, const PanelShape&) { return kMaxColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    // Panels of a pass over the inputs are of one kind, and not more than a tile has.
    const GgufForm* const forms = shape.forms;
    const bool same = forms[0].id == forms[1].id;
    const int64_t most = GgufTilePanels(static_cast<int>(MinOf(m, kTileRows)));
    const int64_t stride = same ? 1 : 2;
    for (int64_t start = 0; start < stride; ++start) {
      for (int64_t c = start; c < columns; c += most * stride) {
        Panels panels;
        while (panels.count < most && c + panels.count * stride < columns) {
          const int64_t column = c + panels.count * stride;
          const int64_t after = column + most * stride;
          panels.data[panels.count] = w[column];
          panels.next[panels.count] =
              after < columns ? w[after] : w[start + panels.count * stride] + next_bytes;
          panels.outs[panels.count++] = sums + column * m * kLanes;
        }
        if (m <= MostRowsOf(forms[start])) {
          RowsOf(x, m, panels, forms[start], shape.k);
          continue;
        }
        PassOf(x, m, panels, forms[start], shape.k, next_bytes);
      }
    }
  }

 private:
  struct Panels {
    int64_t count = 0;
    const std::byte* data[kMaxColumns];
    const std::byte* next[kMaxColumns];  // those of the pass that follows
    float* outs[kMaxColumns];
  };

  // As many rows take codes from panels into registers, turn by turn; with more it is faster to
  // widen a panel once, of bytes sooner. Of IQ4's codes, up to 127, two products alone fit 16 bits.
  static int64_t MostRowsOf(const GgufForm& form) {
    int64_t most = kGgufMostRows;
    if (kDotOfFour && form.id == kQ8_0) most = 8;
    if (!kDotOfFour && (form.id == kIq4Nl || form.id == kIq4Xs)) most = 2;
    return MinOf(most, kGgufMostRows);
  }

  static void RowsOf(const std::byte* const* x, int64_t m, const Panels& panels,
                     const GgufForm& form, int64_t k) {
    WithGgufType(form.id, [&](auto type) {
      constexpr uint32_t kId = decltype(type)::value;
      if constexpr (kGgufTurnRows > 2) {
        if (m > 2) return PanelByPanel<kId, kGgufTurnRows>(x, m, panels, k);
      }
      if constexpr (kGgufTurnRows > 1) {
        if (m > 1) return PanelByPanel<kId, 2>(x, m, panels, k);
      }
      if constexpr (kGgufMostRows > 0) {
        // More streams read blocks of 32 faster, and those of 256, whose code is long, no faster.
        constexpr int kPanels = kGgufBlockInputs<kId> == kGgufStep ? 1 : GgufTilePanels(1);
        if (panels.count == kPanels) {
          return GgufRows<kId, 1, kPanels>(x, 1, k, panels.data, panels.next, panels.outs);
        }
        PanelByPanel<kId, 1>(x, 1, panels, k);
      }
    });
  }

  template <uint32_t kId, int M>
  static void PanelByPanel(const std::byte* const* x, int64_t m, const Panels& panels, int64_t k) {
    for (int64_t p = 0; p < panels.count; ++p) {
      const std::byte* const* const next = p + 1 < panels.count ? panels.data + p + 1 : panels.next;
      // More rows than M take turns; a panel comes from a cache then.
      const int64_t turns = CeilDiv(m, M);
      for (int64_t turn = 0; turn < turns; ++turn) {
        const int64_t begin = turn * m / turns;
        float* const out = panels.outs[p] + begin * kLanes;
        GgufRows<kId, M, 1>(x + begin, (turn + 1) * m / turns - begin, k, panels.data + p, next,
                            &out);
      }
    }
  }

  static void PassOf(const std::byte* const* x, int64_t m, const Panels& panels,
                     const GgufForm& form, int64_t k, int64_t next_bytes) {
    WidePanel wide[kMaxColumns];
    const GgufKind kind = GgufKindOf(form.id);
    const int64_t blocks = k / form.values;
    for (int64_t p = 0; p < panels.count; ++p) {
      __builtin_memset(panels.outs[p], 0, static_cast<size_t>(m * kLineBytes));
    }
    const int64_t tiles = CeilDiv(m, kTileRows);
    for (int64_t first = 0; first < k; first += kGgufStep) {
      const int64_t inputs = MinOf(k - first, kGgufStep);
      GgufIntAhead ahead;
      int64_t lines = 0;
      for (int64_t p = 0; p < panels.count; ++p) {
        const GgufAhead of = AheadOfStep(panels.data[p], form, k, first, inputs, next_bytes);
        ahead.from[p] = of.from;
        lines = of.lines;
        // What the corrections are 128 times too large for is in the addends.
        WidenGguf(form.id, {panels.data[p], blocks, -1.0f / kGgufZero}, first, inputs, wide[p]);
      }
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = tile * m / tiles;
        const int64_t rows = (tile + 1) * m / tiles - begin;
        float* outs[kMaxColumns];
        for (int64_t p = 0; p < panels.count; ++p) outs[p] = panels.outs[p] + begin * kLanes;
        // The tiles share the lines.
        ahead.lines = CeilDiv(lines, inputs / kind.group * (tiles - tile));
        const auto run = [&](auto product) {
          product(rows, panels.count, x + begin, k, first, inputs, wide, ahead, outs);
        };
        if (kind.group == 32) {
          run(kind.addends ? GgufIntTileRows<32, true> : GgufIntTileRows<32, false>);
        } else {
          run(kind.addends ? GgufIntTileRows<16, true> : GgufIntTileRows<16, false>);
        }
        const int64_t done = MinOf(lines, ahead.lines * (inputs / kind.group));
        lines -= done;
        for (int64_t p = 0; p < panels.count; ++p) ahead.from[p] += done * kLineBytes;
      }
    }
  }
};

}  // namespace
}  // namespace moesaic
