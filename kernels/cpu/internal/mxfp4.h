// Products with MXFP4 weights (PackedMatrix, kMxfp4), and their packing. Included after Vec16 and
// math.h.
//
// Values are widened to f32 on the way into registers, which is exact; activations are f32, and an
// output is one chain of fused multiply-adds in ascending k. So every instruction set and class
// gives the bits of a product with the same weights in f32.
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

constexpr int64_t kLineInputs = 8;  // whose values a line has
constexpr int64_t kMxfp4GroupLines = kMxfp4Group / kLineInputs;
constexpr int64_t kMxfp4GroupBytes = kMxfp4GroupLines * kLineBytes;
// Groups whose exponents share a line, which lies before them.
constexpr int64_t kMxfp4Shared = kLineBytes / kLanes;

constexpr int64_t Mxfp4ExponentsOffset(int64_t group) {
  return group / kMxfp4Shared * (kLineBytes + kMxfp4Shared * kMxfp4GroupBytes) +
         group % kMxfp4Shared * kLanes;
}
constexpr int64_t Mxfp4GroupOffset(int64_t group) {
  return group / kMxfp4Shared * (kLineBytes + kMxfp4Shared * kMxfp4GroupBytes) + kLineBytes +
         group % kMxfp4Shared * kMxfp4GroupBytes;
}

template <int kCode, int M, int P>
MOESAIC_INLINE void Mxfp4Step(const float* const (&x)[M], int64_t input, const CodeLine (&codes)[P],
                              const Vec16 (&scales)[P], Vec16 (&sums)[M][P]) {
  Vec16 weights[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) weights[p] = Mul(E2M1<kCode>(codes[p]), scales[p]);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const Vec16 value = Set(x[m][input + kCode]);
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) sums[m][p] = Fma(value, weights[p], sums[m][p]);
  }
}

// sums[(p * sum_rows + m) * 16 ..] of M rows and P panels. Rows are zero from k to a multiple of
// kLineInputs, as their padding is.
template <int M, int P>
void Mxfp4Tile(const std::byte* const* x_rows, const std::byte* const* w, int64_t k, float* out,
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
  for (int64_t group = 0; group * kMxfp4Group < k; ++group) {
    Vec16 scales[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) scales[p] = E8M0(w[p] + Mxfp4ExponentsOffset(group));
    const int64_t first = group * kMxfp4Group;
    const int64_t lines = MinOf(CeilDiv(k - first, kLineInputs), kMxfp4GroupLines);
    for (int64_t line = 0; line < lines; ++line) {
      CodeLine codes[P];
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        const std::byte* const from = w[p] + Mxfp4GroupOffset(group) + line * kLineBytes;
        __builtin_prefetch(from + kAheadOfUse);
        codes[p] = LoadCodes(from);
      }
      const int64_t input = first + line * kLineInputs;
      Mxfp4Step<0, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<1, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<2, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<3, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<4, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<5, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<6, M, P>(x, input, codes, scales, sums);
      Mxfp4Step<7, M, P>(x, input, codes, scales, sums);
    }
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(out + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

template <int M>
void Mxfp4TileRow(const std::byte* const* x, const std::byte* const* w, int64_t panels, int64_t k,
                  float* sums, int64_t sum_rows) {
  constexpr int kPanels = Mxfp4TilePanels(M);
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    Mxfp4Tile<M, kPanels>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
  }
  if constexpr (kPanels > 1) {
    for (; p < panels; ++p) {
      Mxfp4Tile<M, 1>(x, w + p, k, sums + p * sum_rows * kLanes, sum_rows);
    }
  }
}

template <int M = kMxfp4TileRows>
void Mxfp4TileRows(int64_t m, const std::byte* const* x, const std::byte* const* w, int64_t panels,
                   int64_t k, float* sums, int64_t sum_rows) {
  if constexpr (M > 1) {
    if (m < M) return Mxfp4TileRows<M - 1>(m, x, w, panels, k, sums, sum_rows);
  }
  Mxfp4TileRow<M>(x, w, panels, k, sums, sum_rows);
}

// For MatmulOf and GateUpOf.
struct Mxfp4Product : PlainRows<96> {
  static constexpr ActivationType kActivations = ActivationType::kF32;
  static constexpr int64_t kTileRows = kMxfp4TileRows;
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
      Mxfp4TileRows(last - first, x + first, w, columns, shape.k, sums + first * kLanes, m);
    }
  }
};

constexpr uint8_t kNoNumber = 255;  // as an exponent

// The nearest value to a magnitude, of two as near the one whose last bit is 0; 6 from 5 on.
MOESAIC_INLINE int E2M1Code(float magnitude) {
  return (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) + (magnitude >= 1.75f) +
         (magnitude > 2.5f) + (magnitude >= 3.5f) + (magnitude > 5.0f);
}

// weights: [32][16]. The exponent is that of the largest magnitude, less the 2 of 4, so that a
// group of values of the format stays what it is. A group with a NaN or an infinity is NaN.
inline void QuantizeMxfp4(const float* weights, std::byte* lines, std::byte* exponents) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    uint32_t largest = 0;  // of magnitudes, as whole numbers: they are in the same order
    for (int64_t i = 0; i < kMxfp4Group; ++i) {
      largest = MaxOf(largest, BitsOf(weights[i * kLanes + lane]) & 0x7fffffffu);
    }
    const bool finite = largest < kInfinityBits;
    const auto exponent = static_cast<int32_t>(MaxOf<uint32_t>(largest >> 23, 2) - 2);
    exponents[lane] = static_cast<std::byte>(finite ? exponent : kNoNumber);
    // 2^(127 - exponent); the exponent is at most 252.
    const float inverse = FloatOf(static_cast<uint32_t>(254 - MinOf(exponent, 252)) << 23);
    for (int64_t line = 0; line < kMxfp4GroupLines; ++line) {
      uint32_t codes = 0;
      for (int64_t i = 0; i < kLineInputs; ++i) {
        const uint32_t bits = BitsOf(weights[(line * kLineInputs + i) * kLanes + lane]);
        const float magnitude = FloatOf(bits & 0x7fffffffu) * inverse;
        const auto code = static_cast<uint32_t>(E2M1Code(magnitude)) | bits >> 31 << 3;
        codes |= (finite ? code : 0u) << (4 * i);
      }
      StoreAs(lines + line * kLineBytes + lane * 4, codes);
    }
  }
}

inline void UnpackMxfp4(const PackedMatrix& w, int64_t row, float* out) {
  constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const int64_t lane = row % kLanes;
  const std::byte* panel = w.data + row / kLanes * PanelLines(w.type, w.k) * kLineBytes;
  for (int64_t i = 0; i < w.k; ++i) {
    const int64_t group = i / kMxfp4Group;
    const int64_t input = i % kMxfp4Group;
    const auto exponent = LoadAs<uint8_t>(panel + Mxfp4ExponentsOffset(group) + lane);
    const auto codes = LoadAs<uint32_t>(panel + Mxfp4GroupOffset(group) +
                                        input / kLineInputs * kLineBytes + lane * 4);
    const uint32_t code = codes >> (4 * (input % kLineInputs)) & 15;
    const float scale = FloatOf(exponent == 0 ? 0x00400000u : uint32_t{exponent} << 23);
    const float value = kMagnitudes[code & 7] * scale;
    out[i] = exponent == kNoNumber ? __builtin_nanf("") : code < 8 ? value : -value;
  }
}

}  // namespace
}  // namespace moesaic
