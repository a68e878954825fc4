// Products with weights of four bits and a scale for each 32 inputs of an output, and f32
// activations: MXFP4 (mxfp4.h) and W4A16 (w4a16.h), which say as a Format what four bits and scales
// are. Included after Vec16 and math.h.
//
// Values are widened to f32 on the way into registers and multiplied with their scale, which is
// exact; an output is one chain of fused multiply-adds in ascending k. So every instruction set and
// class gives the bits of a product with the same weights in f32.
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

constexpr int64_t kFourBitGroup = 32;
constexpr int64_t kLineInputs = 8;  // whose values a line has
constexpr int64_t kFourBitGroupLines = kFourBitGroup / kLineInputs;
constexpr int64_t kFourBitGroupBytes = kFourBitGroupLines * kLineBytes;

// Where things lie in a panel: a line of scales of so many groups lies before their lines.
template <int64_t kScaleBytes>
struct FourBitLayout {
  static constexpr int64_t kBytesOfScale = kScaleBytes;
  static constexpr int64_t kShared = kLineBytes / (kLanes * kScaleBytes);
  static constexpr int64_t LineOffset(int64_t group) {
    return group / kShared * (kLineBytes + kShared * kFourBitGroupBytes);
  }
  static constexpr int64_t ScalesOffset(int64_t group) {
    return LineOffset(group) + group % kShared * kLanes * kScaleBytes;
  }
  static constexpr int64_t GroupOffset(int64_t group) {
    return LineOffset(group) + kLineBytes + group % kShared * kFourBitGroupBytes;
  }
};

template <class Format, int kCode, int M, int P>
MOESAIC_INLINE void FourBitStep(const float* const (&x)[M], int64_t input,
                                const CodeLine (&codes)[P], const Vec16 (&scales)[P],
                                Vec16 (&sums)[M][P]) {
  Vec16 weights[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) weights[p] = Mul(Format::template Values<kCode>(codes[p]), scales[p]);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const Vec16 value = Set(x[m][input + kCode]);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) sums[m][p] = Fma(value, weights[p], sums[m][p]);
  }
}

// sums[(p * sum_rows + m) * 16 ..] of M rows and P panels. Rows are zero from k to a multiple of
// kLineInputs, as their padding is.
template <class Format, int M, int P>
void FourBitTile(const std::byte* const* x_rows, const std::byte* const* w, int64_t k, float* out,
                 int64_t sum_rows) {
  // How far ahead of its use memory is asked for.
  constexpr int64_t kAheadOfUse = 16 * kLineBytes;
  const float* x[M];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    x[m] = reinterpret_cast<const float*>(x_rows[m]);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) sums[m][p] = Zero();
  }
  for (int64_t group = 0; group * kFourBitGroup < k; ++group) {
    Vec16 scales[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) scales[p] = Format::Scales(w[p] + Format::ScalesOffset(group));
    const int64_t first = group * kFourBitGroup;
    const int64_t lines = MinOf(CeilDiv(k - first, kLineInputs), kFourBitGroupLines);
    for (int64_t line = 0; line < lines; ++line) {
      CodeLine codes[P];
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        const std::byte* const from = w[p] + Format::GroupOffset(group) + line * kLineBytes;
        __builtin_prefetch(from + kAheadOfUse);
        codes[p] = LoadCodes(from);
      }
      const int64_t input = first + line * kLineInputs;
      FourBitStep<Format, 0, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 1, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 2, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 3, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 4, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 5, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 6, M, P>(x, input, codes, scales, sums);
      FourBitStep<Format, 7, M, P>(x, input, codes, scales, sums);
    }
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(out + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

template <class Format, int M>
void FourBitTileRow(const std::byte* const* x, const std::byte* const* w, int64_t panels, int64_t k,
                    float* sums, int64_t sum_rows) {
  constexpr int kPanels = FourBitTilePanels(M);
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    FourBitTile<Format, M, kPanels>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
  }
  if constexpr (kPanels > 1) {
    for (; p < panels; ++p) {
      FourBitTile<Format, M, 1>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
    }
  }
}

template <class Format, int M = kFourBitTileRows>
void FourBitTileRows(int64_t m, const std::byte* const* x, const std::byte* const* w,
                     int64_t panels, int64_t k, float* sums, int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) return FourBitTileRows<Format, M - 1>(m, x, w, panels, k, sums, sum_rows);
  }
  FourBitTileRow<Format, M>(x, w, panels, k, sums, sum_rows);
}

// For MatmulOf and GateUpOf.
template <class Format>
struct FourBitProduct : PlainRows<96> {
  static constexpr ActivationType kActivations = ActivationType::kF32;
  static constexpr int64_t kTileRows = kFourBitTileRows;
  static constexpr int64_t kMaxColumns = 8;
  static constexpr int64_t kLargeColumns = 2;
  static_assert(kChunkRows % kTileRows == 0);

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) {
    return m <= 2 ? kMaxColumns : kLargeColumns;
  }

  // A panel is small enough to stay in a level 1 or 2 cache for all tiles of a chunk of rows.
  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t, std::byte*, float* sums) {
    const int64_t tiles = CeilDiv(m, kTileRows);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first = tile * m / tiles;
      const int64_t last = (tile + 1) * m / tiles;
      FourBitTileRows<Format>(last - first, x + first, w, columns, shape.k, sums + first * kLanes,
                              m);
    }
  }
};

template <class Format>
void UnpackFourBits(const PackedMatrix& w, int64_t row, float* out) {
  const int64_t lane = row % kLanes;
  const std::byte* panel = w.data + row / kLanes * PanelLines(w.type, w.k) * kLineBytes;
  for (int64_t i = 0; i < w.k; ++i) {
    const int64_t group = i / kFourBitGroup;
    const int64_t input = i % kFourBitGroup;
    const auto codes = LoadAs<uint32_t>(panel + Format::GroupOffset(group) +
                                        input / kLineInputs * kLineBytes + lane * 4);
    out[i] = Format::Value(codes >> (4 * (input % kLineInputs)) & 15,
                           panel + Format::ScalesOffset(group) + lane * Format::kBytesOfScale);
  }
}

}  // namespace
}  // namespace moesaic
