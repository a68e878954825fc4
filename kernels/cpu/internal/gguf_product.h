// Products with GGUF's blocks and f32 activations (PackedMatrix, kGgufF32). Included after Vec16,
// ByteLine and math.h.
//
// The values of up to 256 inputs of a panel are widened to f32, lanes being outputs, in a buffer
// that a level 1 cache holds, once for all rows of a call, and an output is one chain of fused
// multiply-adds in ascending k. So every instruction set and class gives the bits of a product with
// the same weights in f32.
#pragma once

#include "kernels/cpu/internal/gguf_values.h"
#include "kernels/cpu/internal/gguf_widen.h"
#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

constexpr int kGgufPanels = 2;  // of a tile of few rows

// Plain floats, which lie as they are in the file.
inline void WidenFloats(const std::byte* panel, const GgufForm& form, int64_t first, int64_t inputs,
                        float* values) {
  alignas(64) float rows[kLanes * kGgufStep];
  const GgufReadBytes read = GgufReadOf(form.id);
  for (int64_t i = 0; i < inputs; i += form.values) {
    const auto* block =
        reinterpret_cast<GgufBytes>(panel) + (first + i) / form.values * kLanes * form.bytes;
    for (int64_t row = 0; row < kLanes; ++row, block += form.bytes) {
      read(block, form.values, rows + row * kGgufStep + i);
    }
  }
  constexpr int64_t kStride = kGgufStep * int64_t{sizeof(float)};
  for (int64_t i = 0; i < inputs; i += kLanes) {
    Transpose16(reinterpret_cast<const std::byte*>(rows + i), kStride,
                reinterpret_cast<std::byte*>(values + i * kLanes));
  }
}

// values: [inputs][16] of a panel, inputs [first, first + inputs), at most kGgufStep and whole
// blocks.
inline void WidenToFloats(const std::byte* panel, const GgufForm& form, int64_t k, int64_t first,
                          int64_t inputs, float* values) {
  if (GgufLayoutOf(form.id) == nullptr) return WidenFloats(panel, form, first, inputs, values);
  WidePanel wide;
  WidenGguf(form.id, {panel, k / form.values, 1.0f}, first, inputs, wide);
  const GgufKind kind = GgufKindOf(form.id);
  const Vec16 zero = Set(kind.addends ? 0.0f : static_cast<float>(kGgufZero));
  for (int64_t line = 0; line < inputs / 4; ++line) {
    const ByteLine bytes = LoadLine(wide.lines + line * kLineBytes);
    const int64_t group = 4 * line / kind.group;
    const Vec16 scale = Load(wide.scales[group]);
    ForEach<4>([&](auto of) MOESAIC_BODY {
      constexpr int i = decltype(of)::value;
      const Vec16 value = Mul(scale, Sub(LaneBits<8 * i, 255>(bytes), zero));
      Store(values + (4 * line + i) * kLanes,
            kind.addends ? Add(value, Load(wide.addends[group])) : value);
    });
  }
}

// Adds `inputs` products to sums[(p * sum_rows + m) * 16 ..] of M rows and P panels.
template <int M, int P>
void GgufTile(const std::byte* const* x_rows, int64_t first, int64_t inputs,
              const float (*values)[kLanes * kGgufStep], float* out, int64_t sum_rows) {
  const float* x[M];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    x[m] = reinterpret_cast<const float*>(x_rows[m]) + first;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) sums[m][p] = Load(out + (p * sum_rows + m) * kLanes);
  }
  for (int64_t i = 0; i < inputs; ++i) {
    Vec16 weights[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) weights[p] = Load(values[p] + i * kLanes);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      const Vec16 value = Set(x[m][i]);
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) sums[m][p] = Fma(value, weights[p], sums[m][p]);
    }
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(out + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

template <int P, int M>
void GgufTileRows(int64_t m, const std::byte* const* x, int64_t first, int64_t inputs,
                  const float (*values)[kLanes * kGgufStep], float* sums, int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) return GgufTileRows<P, M - 1>(m, x, first, inputs, values, sums, sum_rows);
  }
  GgufTile<M, P>(x, first, inputs, values, sums, sum_rows);
}

// For MatmulOf and GateUpOf.
struct GgufProduct : PlainRows<96> {
  static constexpr ActivationType kActivations = ActivationType::kF32;
  static constexpr int64_t kTileRows = kFourBitTileRows;
  static constexpr int64_t kMaxColumns = kGgufPanels;
  static constexpr int64_t kLargeColumns = kGgufPanels;
  static_assert(kChunkRows % kTileRows == 0);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t, const PanelShape&) { return kMaxColumns; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    alignas(64) float values[kGgufPanels][kLanes * kGgufStep];
    __builtin_memset(sums, 0, static_cast<size_t>(columns * m * kLineBytes));
    const int64_t tiles = CeilDiv(m, kTileRows);
    for (int64_t first = 0; first < shape.k; first += kGgufStep) {
      const int64_t inputs = MinOf(shape.k - first, kGgufStep);
      for (int64_t c = 0; c < columns; ++c) {
        const GgufForm& form = shape.forms[c % 2];
        const GgufAhead ahead = AheadOfStep(w[c], form, shape.k, first, inputs, next_bytes);
        for (int64_t line = 0; line < ahead.lines; ++line) {
          __builtin_prefetch(ahead.from + line * kLineBytes);
        }
        WidenToFloats(w[c], form, shape.k, first, inputs, values[c]);
      }
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = tile * m / tiles;
        const int64_t rows = (tile + 1) * m / tiles - begin;
        float* const out = sums + begin * kLanes;
        if (columns == kGgufPanels && rows <= kGgufPairRows) {
          GgufTileRows<kGgufPanels, kGgufPairRows>(rows, x + begin, first, inputs, values, out, m);
          continue;
        }
        for (int64_t c = 0; c < columns; ++c) {
          GgufTileRows<1, kTileRows>(rows, x + begin, first, inputs, values + c,
                                     out + c * m * kLanes, m);
        }
      }
    }
  }

 private:
  static constexpr int kGgufPairRows = static_cast<int>(kTileRows) > 2 ? 2 : 1;
};

}  // namespace
}  // namespace moesaic
