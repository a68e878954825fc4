// Products on the tile registers of AMX. Included after Vec16, Ints16, Tiles and quant_tiles.h.
//
// A line of a packed panel is a row of a tile of weights as it is: pairs of bf16 or four bytes of
// 16 outputs. Activations are copied into tiles first, because gathered rows have no common stride.
// Rows are spread over tiles of equal height, so that few rows cost few cycles; the last tile is
// filled up with zeros.
//
// bf16: a step is 32 inputs; the instruction sums the even and the odd ones of a step in two chains
// of multiply-adds, adds the two and then adds that to the sum (Intel SDM, TDPBF16PS), with
// denormals taken for zero. That order is the class kAmxBf16; rows never mix, so that the bits of a
// row depend on nothing else. There is no other path for few rows: a step of one row reads a KiB of
// weights in 16 cycles, several times as fast as memory gives them.
//
// Integers: a step is one group of 32 inputs. Its sums are exact; they are stored and scaled in
// vectors as quant_tiles.h does, while the tiles work on the next group.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

constexpr int64_t kAmxRows = 16;  // of a tile at most
constexpr int64_t kAmxChunkRows = 64;
constexpr int64_t kAmxColumns = 8;  // panels for which activations are copied once
// Weights that are asked for ahead of their use, in each panel.
constexpr int64_t kAmxAheadBytes = 2048;

// Where the rows of a product lie in tiles.
struct AmxRows {
  explicit AmxRows(int64_t rows)
      : m(rows), tiles(CeilDiv(rows, kAmxRows)), tile_rows(CeilDiv(rows, tiles)) {}
  int64_t padded() const { return tiles * tile_rows; }
  int64_t begin(int64_t tile) const { return tile * tile_rows; }
  int64_t count(int64_t tile) const { return MinOf(tile_rows, m - begin(tile)); }

  int64_t m;
  int64_t tiles;
  int64_t tile_rows;
};

// Calls run.operator()<R, P>(tile, column) for blocks of R tiles of rows and P panels that cover
// all of them, every panel in one stretch.
template <class Run>
MOESAIC_INLINE void ForAmxBlocks(int64_t tiles, int64_t column, int64_t columns, const Run& run) {
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    if (tile + 2 <= tiles) {
      columns == 2 ? run.template operator()<2, 2>(tile, column)
                   : run.template operator()<2, 1>(tile, column);
    } else {
      columns == 2 ? run.template operator()<1, 2>(tile, column)
                   : run.template operator()<1, 1>(tile, column);
    }
  }
}

MOESAIC_INLINE void PrefetchLines(const std::byte* from, int64_t lines) {
  for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + line * kLineBytes);
}

// Calls run.operator()<row, panel>() for every tile of a block.
template <int R, int P, class Run>
MOESAIC_INLINE void ForTiles(const Run& run) {
  run.template operator()<0, 0>();
  if constexpr (P == 2) run.template operator()<0, 1>();
  if constexpr (R == 2) run.template operator()<1, 0>();
  if constexpr (R == 2 && P == 2) run.template operator()<1, 1>();
}

// How MatmulOf and GateUpOf cut a product for tiles, whatever the type.
struct AmxBlocks {
  static constexpr int64_t kTileRows = 2 * kAmxRows;
  static constexpr int64_t kChunkRows = kAmxChunkRows;
  static constexpr int64_t kLargeColumns = kAmxColumns;
  static constexpr int64_t kMaxColumns = kAmxColumns;
  static_assert(kChunkRows % kTileRows == 0);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t) { return kAmxColumns; }
};

struct AmxBf16Product : AmxBlocks {
  static constexpr ActivationType kActivations = ActivationType::kBf16;

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, int64_t lines, int64_t, float* sums) {
    alignas(64) std::byte packed[kBlockSteps * kChunkRows * kLineBytes];
    const AmxRows rows(m);
    const int64_t steps = CeilDiv(lines, kStepLines);
    Tiles::Configure(rows.tile_rows, kLineBytes, kStepLines);
    for (int64_t begin = 0; begin < steps; begin += kBlockSteps) {
      const int64_t end = MinOf(begin + kBlockSteps, steps);
      PackX(x, rows, begin, end, packed);
      for (int64_t c = 0; c < columns; c += 2) {
        ForAmxBlocks(rows.tiles, c, MinOf<int64_t>(columns - c, 2),
                     [&]<int R, int P>(int64_t tile, int64_t column) {
                       AddBlock<R, P>(packed, rows, tile, w + column, lines, begin, end,
                                      sums + column * m * kLanes);
                     });
      }
    }
  }

 private:
  static constexpr int64_t kStepLines = 16;
  // Of 32 inputs: 32 KiB of activations beside 16 KiB of two panels.
  static constexpr int64_t kBlockSteps = 8;

  // [step][row][64 bytes]. Rows of activations are padded with zeros to whole steps.
  static void PackX(const std::byte* const* x, const AmxRows& rows, int64_t begin, int64_t end,
                    std::byte* to) {
    for (int64_t step = begin; step < end; ++step) {
      for (int64_t r = 0; r < rows.padded(); ++r, to += kLineBytes) {
        if (r < rows.m) {
          __builtin_memcpy(to, x[r] + step * kLineBytes, kLineBytes);
        } else {
          __builtin_memset(to, 0, kLineBytes);
        }
      }
    }
  }

  // Adds steps [begin, end) of R tiles of rows and P panels to their sums, which start at zero.
  template <int R, int P>
  static void AddBlock(const std::byte* packed, const AmxRows& rows, int64_t tile,
                       const std::byte* const* w, int64_t lines, int64_t begin, int64_t end,
                       float* sums) {
    alignas(64) std::byte last_step[P][kStepLines * kLineBytes];
    // Of a tile that has fewer rows than others.
    alignas(64) float low[kAmxRows * kLanes];
    const auto sums_of = [&](int row, int panel) {
      return sums + (panel * rows.m + rows.begin(tile + row)) * kLanes;
    };
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      if (begin == 0) {
        Tiles::ZeroSums<kRow, kPanel>();
      } else if (const int64_t count = rows.count(tile + kRow); count == rows.tile_rows) {
        Tiles::LoadSums<kRow, kPanel>(sums_of(kRow, kPanel));
      } else {
        CopyRows(sums_of(kRow, kPanel), count, low);
        ZeroRows(low, count, rows.tile_rows);
        Tiles::LoadSums<kRow, kPanel>(low);
      }
    });
    for (int64_t step = begin; step < end; ++step) {
      const std::byte* x =
          packed + ((step - begin) * rows.padded() + rows.begin(tile)) * kLineBytes;
      Tiles::LoadX<0>(x, kLineBytes);
      if constexpr (R == 2) Tiles::LoadX<1>(x + rows.tile_rows * kLineBytes, kLineBytes);
      const std::byte* from[P];
      for (int p = 0; p < P; ++p) {
        from[p] = w[p] + step * kStepLines * kLineBytes;
        if (tile == 0) PrefetchLines(from[p] + kAmxAheadBytes, kStepLines);
        if (const int64_t rest = lines - step * kStepLines; rest < kStepLines) {
          __builtin_memset(last_step[p], 0, sizeof(last_step[p]));
          __builtin_memcpy(last_step[p], from[p], static_cast<size_t>(rest * kLineBytes));
          from[p] = last_step[p];
        }
      }
      Tiles::LoadWeights<0>(from[0]);
      if constexpr (P == 2) Tiles::LoadWeights<1>(from[1]);
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBf16<kRow, kPanel>(); });
    }
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      if (const int64_t count = rows.count(tile + kRow); count == rows.tile_rows) {
        Tiles::StoreSums<kRow, kPanel>(sums_of(kRow, kPanel));
      } else {
        Tiles::StoreSums<kRow, kPanel>(low);
        CopyRows(low, count, sums_of(kRow, kPanel));
      }
    });
  }

  static void CopyRows(const float* from, int64_t count, float* to) {
    for (int64_t r = 0; r < count; ++r) Store(to + r * kLanes, Load(from + r * kLanes));
  }
  static void ZeroRows(float* rows, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) Store(rows + r * kLanes, Zero());
  }
};

template <WeightType kType>
struct AmxQuantProduct : AmxBlocks {
  static constexpr ActivationType kActivations = ActivationType::kInt8;

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, int64_t lines, int64_t, float* sums) {
    Packed packed;
    const AmxRows rows(m);
    const int64_t pairs = CeilDiv(lines, kPairLines);
    const int64_t groups = 2 * pairs - (lines < pairs * kPairLines ? 1 : 0);
    Tiles::Configure(rows.tile_rows, kQuantGroup, kStepLines);
    for (int64_t begin = 0; begin < groups; begin += kBlockGroups) {
      const int64_t end = MinOf(begin + kBlockGroups, groups);
      PackX(x, rows, begin, end, packed);
      for (int64_t c = 0; c < columns; c += 2) {
        const int64_t count = MinOf<int64_t>(columns - c, 2);
        // As groups of int8.
        alignas(64) std::byte widened[kType == WeightType::kInt4 ? 2 * kWideBytes : 1];
        const std::byte* panels[2] = {};
        for (int64_t p = 0; p < count; ++p) {
          panels[p] = w[c + p] + begin / 2 * kPairBytes<kType>;
          PrefetchLines(panels[p] + kBlockGroups / 2 * kPairBytes<kType>,
                        kBlockGroups / 2 * kPairLines);
          if constexpr (kType == WeightType::kInt4) {
            WidenGroups(panels[p], end - begin, widened + p * kWideBytes);
            panels[p] = widened + p * kWideBytes;
          }
        }
        ForAmxBlocks(rows.tiles, c, count, [&]<int R, int P>(int64_t tile, int64_t column) {
          AddBlock<R, P>(packed, rows, tile, panels, end - begin, begin == 0,
                         sums + column * m * kLanes);
        });
      }
    }
    if constexpr (kType == WeightType::kInt4) {
      for (int64_t i = 0; i < columns * m * kLanes; i += kLanes) {
        Store(sums + i, Mul(Load(sums + i), Set(1.0f / 16)));
      }
    }
  }

 private:
  static constexpr int64_t kStepLines = 8;
  static constexpr int64_t kBlockGroups = 8;
  static constexpr int64_t kPairLines = kPairBytes<kType> / kLineBytes;
  static constexpr int64_t kWideBytes = kBlockGroups / 2 * kPairBytes<WeightType::kInt8>;

  // Activations of a block of groups.
  struct Packed {
    alignas(64) int8_t values[kBlockGroups * kChunkRows * kQuantGroup];  // [group][row][32]
    float scales[kBlockGroups * kChunkRows];                             // [group][row]
    int32_t corrections[kBlockGroups * kChunkRows];
  };

  static void PackX(const std::byte* const* x, const AmxRows& rows, int64_t begin, int64_t end,
                    Packed& packed) {
    int64_t to = 0;
    for (int64_t group = begin; group < end; ++group) {
      for (int64_t r = 0; r < rows.padded(); ++r, ++to) {
        if (r < rows.m) {
          const auto* from = reinterpret_cast<const ActivationGroup*>(x[r]) + group;
          __builtin_memcpy(packed.values + to * kQuantGroup, from->values, kQuantGroup);
          packed.scales[to] = from->scale;
          packed.corrections[to] = from->correction;
        } else {
          __builtin_memset(packed.values + to * kQuantGroup, 0, kQuantGroup);
        }
      }
    }
  }

  // The groups of a block, of R tiles of rows and P panels; the sums start at zero when `first`.
  template <int R, int P>
  static void AddBlock(const Packed& packed, const AmxRows& rows, int64_t tile,
                       const std::byte* const* panels, int64_t groups, bool first, float* sums) {
    // Of one group while the next one is multiplied.
    alignas(64) int32_t dots[2][R * P][kAmxRows * kLanes];
    const auto fold = [&](int64_t group) {
      const int64_t row = group * rows.padded() + rows.begin(tile);
      for (int p = 0; p < P; ++p) {
        const std::byte* pair = panels[p] + group / 2 * kPairBytes<WeightType::kInt8>;
        const Vec16 scale = LoadF16(pair + group % 2 * kScaleBytes);
        for (int t = 0; t < R; ++t) {
          const int32_t* from = dots[group % 2][t * P + p];
          float* to = sums + (p * rows.m + rows.begin(tile + t)) * kLanes;
          const int64_t count = rows.count(tile + t);
          for (int64_t r = 0; r < count; ++r) {
            const int64_t at = row + t * rows.tile_rows + r;
            const Vec16 sum = first && group == 0 ? Zero() : Load(to + r * kLanes);
            const Ints16 dot = AddToAll(LoadDots(from + r * kLanes), packed.corrections[at]);
            Store(to + r * kLanes, Fma(ToFloats(dot), Mul(scale, Set(packed.scales[at])), sum));
          }
        }
      }
    };
    for (int64_t group = 0; group < groups; ++group) {
      const int8_t* x = packed.values + (group * rows.padded() + rows.begin(tile)) * kQuantGroup;
      Tiles::LoadX<0>(x, kQuantGroup);
      if constexpr (R == 2) Tiles::LoadX<1>(x + rows.tile_rows * kQuantGroup, kQuantGroup);
      const int64_t at = group / 2 * kPairBytes<WeightType::kInt8> +
                         (1 + group % 2 * kGroupLines<WeightType::kInt8>)*kLineBytes;
      Tiles::LoadWeights<0>(panels[0] + at);
      if constexpr (P == 2) Tiles::LoadWeights<1>(panels[1] + at);
      ForTiles<R, P>([&]<int kRow, int kPanel>() {
        Tiles::ZeroSums<kRow, kPanel>();
        Tiles::DotBytes<kRow, kPanel>();
        Tiles::StoreSums<kRow, kPanel>(dots[group % 2][kRow * P + kPanel]);
      });
      if (group > 0) fold(group - 1);
    }
    fold(groups - 1);
  }
};

// The products of one implementation of Tiles.
void AmxMatmul(const MatmulArgs& args) {
  if (args.w.type == WeightType::kF32) {
    return MatmulOf<FloatProduct<Bf16TimesF32, ActivationType::kBf16>>(args);
  }
  MatmulOf<AmxBf16Product>(args);
  Tiles::Release();
}

void AmxGateUp(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kF32) {
    return GateUpOf<FloatProduct<Bf16TimesF32, ActivationType::kBf16>>(args);
  }
  GateUpOf<AmxBf16Product>(args);
  Tiles::Release();
}

void AmxQuantMatmul(const MatmulArgs& args) {
  args.w.type == WeightType::kInt8 ? MatmulOf<AmxQuantProduct<WeightType::kInt8>>(args)
                                   : MatmulOf<AmxQuantProduct<WeightType::kInt4>>(args);
  Tiles::Release();
}

void AmxQuantGateUp(const GateUpArgs& args) {
  args.gate.type == WeightType::kInt8 ? GateUpOf<AmxQuantProduct<WeightType::kInt8>>(args)
                                      : GateUpOf<AmxQuantProduct<WeightType::kInt4>>(args);
  Tiles::Release();
}

constexpr ProductKernels kAmxBf16 = {.matmul = AmxMatmul, .gate_up = AmxGateUp};
constexpr ProductKernels kAmxIntegers = {.matmul = AmxQuantMatmul, .gate_up = AmxQuantGateUp};

}  // namespace
}  // namespace moesaic
