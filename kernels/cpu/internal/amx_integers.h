// Products of integers on tile registers. Included after Vec16, Ints16, Tiles, quant_tiles.h and
// matmul.h.
#pragma once

#include "kernels/cpu/internal/amx_rows.h"

namespace moesaic {
namespace {

// A step is 64 inputs; two of them are a group. A unit of work is a pair of groups of one or two
// tiles of rows and panels: while the tiles of one unit are multiplied, the sums of the unit
// before, which have left the tiles, are scaled and added in vectors. Both units' sums and the
// pair's weights stay in a level 1 cache, which is what decides the speed
// (docs/experiments/integer-weights.md).
template <WeightType kType>
struct AmxQuantProduct : EvenRows<AmxQuantProduct<kType>> {
  static constexpr ActivationType kActivations = ActivationType::kInt8;
  static constexpr int64_t kChunkRows = 128;
  static constexpr int64_t kLargeColumns = 16;
  static constexpr int64_t kMaxColumns = 16;
  using Rows = EvenRows<AmxQuantProduct>;
  // Behind what EvenRows has: the scales of the rows, [groups][rows].
  static constexpr int64_t kScalesBytes = int64_t{256} << 10;
  static constexpr int64_t kScratchBytes = Rows::kScratchBytes + kScalesBytes;
  static constexpr auto kScaleBytesOfRow = static_cast<int64_t>(sizeof(ActivationScale));
  static constexpr int64_t kMaxInputs =
      kScalesBytes / (Rows::kTileRows * kScaleBytesOfRow) * kQuantGroup;

  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape& shape) {
    const int64_t rows = kScalesBytes / (CeilDiv(shape.k, kQuantGroup) * kScaleBytesOfRow);
    return MinOf(rows / Rows::kTileRows * Rows::kTileRows, kChunkRows);
  }
  static void PrepareRows(const std::byte** x, int64_t m, const PanelShape& shape,
                          std::byte* scratch) {
    auto* const to = reinterpret_cast<ActivationScale*>(scratch + Rows::kScratchBytes);
    for (int64_t r = 0; r < m; ++r) {
      const auto* from =
          reinterpret_cast<const ActivationScale*>(x[r] + ActivationScalesOffset(shape.k));
      for (int64_t group = 0; group < CeilDiv(shape.k, kQuantGroup); ++group) {
        to[group * m + r] = from[group];
      }
    }
    Rows::PrepareRows(x, m, shape, scratch);
    Tiles::Configure(AmxRows(m).tile_rows, kLineBytes, kStepLines);
  }
  MOESAIC_INLINE static int64_t RowBytes(const PanelShape& shape) {
    return ActivationScalesOffset(shape.k);
  }
  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape& shape) {
    return Rows::Fits(m, shape) ? 8 : kMaxColumns;
  }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes,
                      std::byte* scratch, float* sums) {
    const AmxRows rows(m);
    const int64_t pairs = CeilDiv(shape.k, 2 * kQuantGroup);
    const bool fits = Rows::Fits(m, shape);
    const int64_t part_pairs = fits ? pairs : Rows::PartLines(m, kPairSteps) / kPairSteps;
    const std::byte* copies[kChunkRows];
    const int64_t ahead = columns > 2 ? w[2] - w[0] : next_bytes;
    const auto* scales = reinterpret_cast<const ActivationScale*>(scratch + Rows::kScratchBytes);
    Unit units[2];
    int64_t count = 0;
    for (int64_t begin = 0; begin < pairs; begin += part_pairs) {
      const int64_t end = MinOf(begin + part_pairs, pairs);
      if (!fits) {
        Rows::CopyPart(x, m, begin * kPairSteps,
                       MinOf(end * kPairSteps, RowBytes(shape) / kLineBytes),
                       part_pairs * kPairSteps, scratch, copies);
      }
      const std::byte* const* part_x = fits ? x : copies;
      const int64_t stride = StrideOf(part_x, m);
      for (int64_t c = 0; c < columns; c += 2) {
        const int64_t panels = MinOf<int64_t>(columns - c, 2);
        int64_t next = ahead;  // from these panels to what is read after their last pair
        if (c + 2 < columns) {
          next += begin * PairBytes(kType);
        } else if (end < pairs) {
          next = w[0] - w[c] + end * PairBytes(kType);
        }
        for (int64_t pair = begin; pair < end; ++pair) {
          LineAsker asker(w + c, panels, pair + 1 < end ? (pair + 1) * PairBytes(kType) : next,
                          AskingPoints(rows.tiles, panels));
          const PairOfPanels weights(w + c, panels, shape.k, pair, begin, asker);
          ForAmxBlocks(rows.tiles, c, panels, [&]<int R, int P>(int64_t tile, int64_t column) {
            Unit& unit = units[count % 2];
            unit.Begin(scales + 2 * pair * m, rows, tile, R, P, weights,
                       sums + column * m * kLanes);
            Multiply<R, P>(part_x, stride, rows, tile, weights, asker, unit,
                           units[(count + 1) % 2]);
            ++count;
          });
        }
      }
    }
    units[(count + 1) % 2].FoldHalf(0);
    units[(count + 1) % 2].FoldHalf(1);
  }

 private:
  static constexpr int64_t kStepLines = 16;
  static constexpr int64_t kStepBytes = kStepLines * kLineBytes;
  static constexpr int64_t kPairSteps = 2 * kQuantGroup / kLineBytes;
  static constexpr int64_t kPairLines = PairBytes(kType) / kLineBytes;
  static constexpr int64_t kWideBytes = PairBytes(WeightType::kInt8);
  static constexpr int64_t kTileInts = kAmxRows * kLanes;

  // Asks memory for the next pair of groups, a few lines at a time between other work: bursts of
  // lines are fetched a third slower, and while they wait nothing else is done.
  class LineAsker {
   public:
    // Of `panels` panels from `offset` on, spread over `points` calls.
    LineAsker(const std::byte* const* w, int64_t panels, int64_t offset, int64_t points)
        : first_(w[0] + offset), last_(w[panels - 1] + offset), points_(points) {}
    MOESAIC_INLINE void Ask() {
      for (due_ += kPairLines; asked_ < due_; asked_ += points_) {
        __builtin_prefetch(first_);
        __builtin_prefetch(last_);
        first_ += kLineBytes;
        last_ += kLineBytes;
      }
    }

   private:
    const std::byte* first_;
    const std::byte* last_;
    const int64_t points_;
    int64_t asked_ = 0;  // lines, times points_
    int64_t due_ = 0;
  };
  // How often a pair's work asks: for each subgroup that is widened, for each tile that is loaded.
  static int64_t AskingPoints(int64_t tiles, int64_t panels) {
    const int64_t widened = kType == WeightType::kInt4 ? 2 * kSubgroups * panels : 0;
    return widened + kPairSteps * (tiles + CeilDiv(tiles, 2) * panels);
  }

  // A pair of groups of one or two panels, as int8.
  struct PairOfPanels {
    // The rows begin with pair `first_pair`.
    PairOfPanels(const std::byte* const* w, int64_t count, int64_t k, int64_t pair,
                 int64_t first_pair, LineAsker& asker)
        : range{k, 2 * pair, MinOf(2 * pair + 2, CeilDiv(k, kQuantGroup))},
          group_of_rows(2 * (pair - first_pair)),
          whole(range.subgroups() == 2 * kSubgroups) {
      for (int64_t p = 0; p < count; ++p) {
        panels[p] = w[p] + pair * PairBytes(kType);
        scales[p] = panels[p];
        const int64_t last = range.subgroups(range.end - 1);
        if constexpr (kType == WeightType::kInt4) {
          WidenGroups(panels[p], range, memory + p * kWideBytes, [&] { asker.Ask(); });
          panels[p] = memory + p * kWideBytes;
        } else if (last % 2 == 1) {
          // Half a step, which may be the end of the matrix.
          const int64_t at =
              GroupOffset(WeightType::kInt8, range.end - 1 - range.begin) + last / 2 * kStepBytes;
          std::byte* const step = memory + p * kStepBytes;
          __builtin_memcpy(step, panels[p] + at, kStepBytes / 2);
          __builtin_memset(step + kStepBytes / 2, 0, kStepBytes / 2);
          half_step_at = at;
        }
      }
    }
    int64_t groups() const { return range.end - range.begin; }
    int64_t steps(int64_t at) const { return CeilDiv(range.subgroups(range.begin + at), 2); }
    MOESAIC_INLINE const std::byte* Step(int64_t panel, int64_t at, int64_t step) const {
      const int64_t offset = GroupOffset(WeightType::kInt8, at) + step * kStepBytes;
      return offset == half_step_at ? memory + panel * kStepBytes : panels[panel] + offset;
    }

    const GroupRange range;
    const int64_t group_of_rows;
    const std::byte* panels[2];
    const std::byte* scales[2];  // their lines
    int64_t half_step_at = -1;
    const bool whole;
    alignas(64) std::byte memory[2 * (kType == WeightType::kInt4 ? kWideBytes : kStepBytes)];
  };

  // What is left to do for a unit when its sums are known: those of up to four tiles.
  struct Unit {
    MOESAIC_INLINE void Begin(const ActivationScale* of_rows, const AmxRows& rows, int64_t tile,
                              int r, int p, const PairOfPanels& weights, float* to) {
      count = r * p;
      whole = weights.whole;
      groups = weights.groups();
      first = weights.range.begin == 0;
      m = rows.m;
      tile_rows = rows.tile_rows;
      for (int i = 0; i < r; ++i) {
        const int64_t begin = rows.begin(tile + i);
        // What two tiles share is added once.
        const int64_t before = tile + i == 0 ? 0 : rows.begin(tile + i - 1) + rows.tile_rows;
        const int64_t skipped = MaxOf<int64_t>(before - begin, 0);
        for (int j = 0; j < p; ++j) {
          tiles[i * p + j] = {.first_row = skipped,
                              .sums = to + (j * rows.m + begin) * kLanes,
                              .scales = weights.scales[j],
                              .of_rows = of_rows + begin};
        }
      }
    }

    // Adds half of the tiles, the first or the second one.
    MOESAIC_INLINE void FoldHalf(int half) const {
      const int end = (half + 1) * count >> 1;
      for (int i = half * count >> 1; i < end; ++i) FoldTile(i);
    }

    // Of tile `tile`.
    MOESAIC_INLINE int32_t* Dots(int group, int tile) { return dots[tile][group]; }

   private:
    struct TileSums {
      int64_t first_row;
      float* sums;
      const std::byte* scales;
      const ActivationScale* of_rows;
    };

    MOESAIC_INLINE void FoldTile(int i) const {
      const TileSums& tile = tiles[i];
      if (whole && tile_rows == kAmxRows && tile.first_row == 0) {
        return FoldRows<kAmxRows, 2>(i, tile, 0);
      }
      FoldPartOfTile(i, tile);
    }

    __attribute__((noinline)) void FoldPartOfTile(int i, const TileSums& tile) const {
      int64_t row = tile.first_row;
      const auto fold = [&]<int N>() {
        for (; row + N <= tile_rows; row += N) {
          groups == 2 ? FoldRows<N, 2>(i, tile, row) : FoldRows<N, 1>(i, tile, row);
        }
      };
      fold.template operator()<16>();
      fold.template operator()<8>();
      fold.template operator()<4>();
      fold.template operator()<2>();
      fold.template operator()<1>();
    }

    template <int N, int kGroups>
    MOESAIC_INLINE void FoldRows(int i, const TileSums& tile, int64_t row) const {
      float* const to = tile.sums + row * kLanes;
      Vec16 total[N];
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) total[r] = first ? Zero() : Load(to + r * kLanes);
      const ActivationScale* of = tile.of_rows + row;
      MOESAIC_UNROLL
      for (int group = 0; group < kGroups; ++group, of += m) {
        const Vec16 scale = LoadF16(tile.scales + group * kScaleBytes);
        const int32_t* from = dots[i][group] + row * kLanes;
        MOESAIC_UNROLL
        for (int r = 0; r < N; ++r) {
          const Ints16 dot = AddToAll(LoadDots(from + r * kLanes), of[r].correction);
          total[r] = Fma(ToFloats(dot), Mul(scale, Set(of[r].scale)), total[r]);
        }
      }
      MOESAIC_UNROLL
      for (int r = 0; r < N; ++r) Store(to + r * kLanes, total[r]);
    }

    alignas(64) int32_t dots[4][2][kTileInts];  // [tile][group]
    TileSums tiles[4];
    int count = 0;
    bool whole = false;  // two groups, nothing missing
    bool first = false;
    int64_t groups = 0;
    int64_t m = 0;
    int64_t tile_rows = 0;
  };

  // The tiles of a unit, and meanwhile what is left of the one before it. Sums are stored late: a
  // product's result is long in coming.
  template <int R, int P>
  MOESAIC_INLINE static void Multiply(const std::byte* const* x, int64_t stride,
                                      const AmxRows& rows, int64_t tile,
                                      const PairOfPanels& weights, LineAsker& asker, Unit& unit,
                                      const Unit& before) {
    if (weights.whole) {
      MultiplyGroup<R, P>(x, stride, rows, tile, weights, 0, 2, asker, unit, before);
      MultiplyGroup<R, P>(x, stride, rows, tile, weights, 1, 2, asker, unit, before);
      return;
    }
    MultiplyGroup<R, P>(x, stride, rows, tile, weights, 0, weights.steps(0), asker, unit, before);
    if (weights.groups() == 2) {
      MultiplyGroup<R, P>(x, stride, rows, tile, weights, 1, weights.steps(1), asker, unit, before);
    } else {
      before.FoldHalf(1);
    }
  }

  template <int R, int P>
  MOESAIC_INLINE static void MultiplyGroup(const std::byte* const* x, int64_t stride,
                                           const AmxRows& rows, int64_t tile,
                                           const PairOfPanels& weights, int at, int64_t steps,
                                           LineAsker& asker, Unit& unit, const Unit& before) {
    ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::ZeroSums<kRow, kPanel>(); });
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t offset = (weights.group_of_rows + at) * kQuantGroup + step * kLineBytes;
      asker.Ask();
      AmxQuantProduct::template LoadRows<0>(x + rows.begin(tile), stride, rows.tile_rows, offset);
      asker.Ask();
      Tiles::LoadWeights<0>(weights.Step(0, at, step));
      if constexpr (P == 2) {
        asker.Ask();
        Tiles::LoadWeights<1>(weights.Step(1, at, step));
      }
      if constexpr (R == 2) {
        asker.Ask();
        AmxQuantProduct::template LoadRows<1>(x + rows.begin(tile + 1), stride, rows.tile_rows,
                                              offset);
      }
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBytes<kRow, kPanel>(); });
    }
    before.FoldHalf(at);
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      Tiles::StoreSums<kRow, kPanel>(unit.Dots(at, kRow * P + kPanel));
    });
  }
};

// More inputs than have room for their scales do not occur in practice.
template <WeightType kType>
void AmxQuantMatmulOf(const MatmulArgs& args) {
  if (args.w.k > AmxQuantProduct<kType>::kMaxInputs) return MatmulOf<QuantProduct<kType>>(args);
  MatmulOf<AmxQuantProduct<kType>>(args);
  Tiles::Release();
}

template <WeightType kType>
void AmxQuantGateUpOf(const GateUpArgs& args) {
  if (args.gate.k > AmxQuantProduct<kType>::kMaxInputs) return GateUpOf<QuantProduct<kType>>(args);
  GateUpOf<AmxQuantProduct<kType>>(args);
  Tiles::Release();
}

}  // namespace
}  // namespace moesaic
