// Products of GGUF's blocks and int8 activations on tile registers: what gguf_int_product.h
// computes, bit for bit. Included after Vec16, Ints16, Tiles, gguf_int_product.h and matmul.h.
//
// A scale is of 32 inputs, half of what a tile could multiply at once: each such group of inputs
// has a product of tiles of its own. Panels are widened to signed bytes, which need no correction
// of the sums. Types with a scale for 16 inputs are multiplied in vectors: their tiles would be
// three quarters empty, and are not faster.
#pragma once

#include "kernels/cpu/internal/amx_rows.h"
#include "kernels/cpu/internal/gguf_int_product.h"

namespace moesaic {
namespace {

// A unit of work is 128 inputs of a tile of rows and a panel. While its tiles are multiplied, the
// sums of the unit before, which have left the tiles, are scaled and added in vectors. What decides
// the speed is that two units' sums take no more than a part of a level 1 cache
// (docs/experiments/integer-weights.md).
struct AmxGgufProduct : EvenRows<AmxGgufProduct> {
  static constexpr ActivationType kActivations = ActivationType::kInt8Sums;
  static constexpr int64_t kChunkRows = 128;
  static constexpr int64_t kLargeColumns = 4;
  static constexpr int64_t kMaxColumns = kLargeColumns;
  using Rows = EvenRows<AmxGgufProduct>;
  // Behind what EvenRows has: the scales of the rows, [units][rows], and the sums of their groups
  // as floats, [groups][rows].
  static constexpr int64_t kFloatsBytes = int64_t{256} << 10;
  static constexpr int64_t kScratchBytes = Rows::kScratchBytes + kFloatsBytes;
  static constexpr int64_t kGroup = 32;
  static constexpr int kGroups = static_cast<int>(kQuantGroup / kGroup);  // as many tiles of sums
  static constexpr int64_t kUnitBytes = (1 + kGroups) * int64_t{sizeof(float)};  // of a row
  static constexpr int64_t kMaxInputs = kFloatsBytes / (Rows::kTileRows * kUnitBytes) * kQuantGroup;

  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape& shape) {
    const int64_t rows = kFloatsBytes / (CeilDiv(shape.k, kQuantGroup) * kUnitBytes);
    return MinOf(rows / Rows::kTileRows * Rows::kTileRows, kChunkRows);
  }
  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    return ActivationScalesOffset(shape.k);
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t, const PanelShape&) { return kMaxColumns; }

  static void PrepareRows(const std::byte** x, int64_t m, const PanelShape& shape,
                          std::byte* scratch) {
    const int64_t units = CeilDiv(shape.k, kQuantGroup);
    auto* const scales = reinterpret_cast<float*>(scratch + Rows::kScratchBytes);
    float* const sums = scales + units * m;
    for (int64_t r = 0; r < m; ++r) {
      const auto* of =
          reinterpret_cast<const ActivationScale*>(x[r] + ActivationScalesOffset(shape.k));
      for (int64_t unit = 0; unit < units; ++unit) scales[unit * m + r] = of[unit].scale;
      const auto* of_groups =
          reinterpret_cast<const int32_t*>(x[r] + GroupSumsOffset(shape.k, kGroup));
      for (int64_t g = 0; g < shape.k / kGroup; ++g) {
        sums[g * m + r] = static_cast<float>(of_groups[g]);
      }
    }
    Rows::PrepareRows(x, m, shape, scratch);
    Tiles::Configure(AmxRows(m).tile_rows, kGroup, kGroup / 4);
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes,
                      std::byte* scratch, float* sums) {
    const auto* floats = reinterpret_cast<const float*>(scratch + Rows::kScratchBytes);
    for (int64_t c = 0; c < columns; ++c) {
      const GgufForm& form = shape.forms[c % 2];
      const int64_t next = c + 1 < columns ? w[c + 1] - w[c] : w[0] - w[c] + next_bytes;
      float* const out = sums + c * m * kLanes;
      GgufKindOf(form.id).addends ? Panel<true>(x, m, w[c], form, shape.k, next, floats, out)
                                  : Panel<false>(x, m, w[c], form, shape.k, next, floats, out);
    }
  }

 private:
  static constexpr int kFoldRows = 4;
  static constexpr int64_t kLeastAhead = 48 * kLineBytes;

  // What is left to do for a unit when its sums are known.
  template <bool kAddends>
  struct Unit {
    // Scales and adds those of kFoldRows rows.
    MOESAIC_INLINE void FoldPiece(int piece) const {
      const int64_t begin = MaxOf<int64_t>(first_row, piece * kFoldRows);
      const int64_t end = MinOf<int64_t>(rows, (piece + 1) * kFoldRows);
      if (end - begin == kFoldRows && groups == kGroups) return Fold<kFoldRows, true>(begin);
      FoldPart(begin, end);
    }

    alignas(64) int32_t dots[kGroups][kAmxRows * kLanes];
    int64_t groups = 0;
    int64_t first_row = 0;  // what two tiles share is added once
    int64_t rows = 0;       // 0: nothing is left
    int64_t m = 0;
    const float* row_scales = nullptr;
    const float* row_sums = nullptr;  // [groups][m]
    const float (*scales)[kLanes] = nullptr;
    const float (*addends)[kLanes] = nullptr;
    float* out = nullptr;

   private:
    __attribute__((noinline)) void FoldPart(int64_t row, int64_t end) const {
      for (; row < end; ++row) Fold<1, false>(row);
    }

    template <int N, bool kWhole>
    MOESAIC_INLINE void Fold(int64_t row) const {
      Vec16 sums[N];
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) sums[r] = Zero();
      const int count = kWhole ? kGroups : static_cast<int>(groups);
      MOESAIC_UNROLL
      for (int g = 0; g < count; ++g) {
        const Vec16 scale = Load(scales[g]);
        const int32_t* const from = dots[g] + row * kLanes;
        MOESAIC_UNROLL
        for (int r = 0; r < N; ++r) {
          sums[r] = Fma(ToFloats(LoadDots(from + r * kLanes)), scale, sums[r]);
        }
        if constexpr (kAddends) {
          const Vec16 addend = Load(addends[g]);
          const float* const of = row_sums + g * m + row;
          MOESAIC_UNROLL
          for (int r = 0; r < N; ++r) sums[r] = Fma(Set(of[r]), addend, sums[r]);
        }
      }
      float* const to = out + row * kLanes;
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) {
        Store(to + r * kLanes, Fma(sums[r], Set(row_scales[row + r]), Load(to + r * kLanes)));
      }
    }
  };

  // Asks memory for what follows, a few lines at a time.
  struct Asker {
    MOESAIC_INLINE void Ask() {
      for (due += lines; asked < due; asked += points) {
        __builtin_prefetch(from);
        from += kLineBytes;
      }
    }
    const std::byte* from = nullptr;
    int64_t lines = 0;
    int64_t points = 0;  // how often it is called for these lines
    int64_t asked = 0;   // lines, times points
    int64_t due = 0;
  };

  template <bool kAddends>
  static void Panel(const std::byte* const* x, int64_t m, const std::byte* w, const GgufForm& form,
                    int64_t k, int64_t next_bytes, const float* floats, float* sums) {
    const AmxRows rows(m);
    const int64_t stride = StrideOf(x, m);
    const float* const row_sums = floats + CeilDiv(k, kQuantGroup) * m;
    const int64_t step_bytes = kGgufStep / form.values * form.bytes * kLanes;
    WidePanel wide;
    Unit<kAddends> units[2];
    int turn = 0;
    __builtin_memset(sums, 0, static_cast<size_t>(m * kLineBytes));
    for (int64_t first = 0; first < k; first += kGgufStep) {
      const int64_t inputs = MinOf(k - first, kGgufStep);
      // Widening reads all of a step at once.
      const GgufAhead ahead =
          AheadOfStep(w, form, k, first, inputs, next_bytes, MaxOf(kLeastAhead, step_bytes));
      // What the sums of groups are -128 times too large for is in the addends.
      WidenGguf<true>(form.id, {w, k / form.values, -1.0f / kGgufZero}, first, inputs, wide);
      Asker asker;
      asker.from = ahead.from;
      asker.lines = ahead.lines;
      asker.points = CeilDiv(inputs, kQuantGroup) * rows.tiles;
      for (int64_t at = 0; at < inputs; at += kQuantGroup) {
        for (int64_t tile = 0; tile < rows.tiles; ++tile, turn ^= 1) {
          const int64_t row = rows.begin(tile);
          Unit<kAddends>& unit = units[turn];
          unit.groups = MinOf(inputs - at, kQuantGroup) / kGroup;
          unit.first_row = tile == 0 ? 0 : rows.begin(tile - 1) + rows.tile_rows - row;
          unit.rows = rows.tile_rows;
          unit.m = m;
          unit.row_scales = floats + (first + at) / kQuantGroup * m + row;
          unit.row_sums = row_sums + (first + at) / kGroup * m + row;
          unit.scales = wide.scales + at / kGroup;
          unit.addends = wide.addends + at / kGroup;
          unit.out = sums + row * kLanes;
          Multiply(x + row, stride, first + at, wide.lines + at / 4 * kLineBytes, asker, unit,
                   units[turn ^ 1]);
        }
      }
      // Before its scales are overwritten.
      Unit<kAddends>& last = units[turn ^ 1];
      for (int piece = 0; piece < kAmxRows / kFoldRows; ++piece) last.FoldPiece(piece);
      last.rows = 0;
    }
  }

  // The tiles of a unit, and meanwhile what is left of the one before it. A product's result is
  // long in coming: others are begun before it is stored.
  template <bool kAddends>
  MOESAIC_INLINE static void Multiply(const std::byte* const* x, int64_t stride, int64_t at,
                                      const std::byte* lines, Asker& asker, Unit<kAddends>& unit,
                                      const Unit<kAddends>& before) {
    const auto product = [&]<int kRow, int kPanel>(int64_t g) MOESAIC_BODY {
      if (g < unit.groups) {
        Tiles::ZeroSums<kRow, kPanel>();
        LoadRows<kRow>(x, stride, unit.rows, at + g * kGroup);
        Tiles::LoadWeights<kPanel>(lines + g * (kGroup / 4) * kLineBytes);
        Tiles::DotSignedBytes<kRow, kPanel>();
      }
      before.FoldPiece(static_cast<int>(g));
    };
    const auto store = [&]<int kRow, int kPanel>(int64_t g) MOESAIC_BODY {
      if (g < unit.groups) Tiles::StoreSums<kRow, kPanel>(unit.dots[g]);
    };
    asker.Ask();
    product.template operator()<0, 0>(0);
    product.template operator()<1, 1>(1);
    store.template operator()<0, 0>(0);
    product.template operator()<0, 1>(2);
    store.template operator()<1, 1>(1);
    product.template operator()<1, 0>(3);
    store.template operator()<0, 1>(2);
    store.template operator()<1, 0>(3);
  }
};

// Tiles need a copy of Q8_0's bytes, which vectors read where they lie.
bool WantsTiles(const PackedMatrix& w, int64_t rows) {
  constexpr int64_t kLeastRowsOfBytes = 64;
  return GgufKindOf(w.form.id).group == AmxGgufProduct::kGroup &&
         w.k <= AmxGgufProduct::kMaxInputs && (w.form.id != kQ8_0 || rows >= kLeastRowsOfBytes);
}

void AmxGgufMatmul(const MatmulArgs& args) {
  if (!WantsTiles(args.w, args.m)) return MatmulOf<GgufIntProduct>(args);
  MatmulOf<AmxGgufProduct>(args);
  Tiles::Release();
}

void AmxGgufGateUp(const GateUpArgs& args) {
  if (!WantsTiles(args.gate, args.m) || !WantsTiles(args.up, args.m)) {
    return GateUpOf<GgufIntProduct>(args);
  }
  GateUpOf<AmxGgufProduct>(args);
  Tiles::Release();
}

}  // namespace
}  // namespace moesaic
