// Products with bf16 weights in class kAmxBf16, in vectors: the bits of the tile registers'
// products (amx_bf16.h), for few rows, which no tile is filled with. Included after
// vec_avx512.h.
//
// A step is 32 inputs, as there: a chain of multiply-adds over its even inputs and one over its odd
// ones, both from zero, their sum is added to the row's. Denormals are zero, which is a setting of
// the thread while a product runs.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/plain_rows.h"

namespace moesaic {
namespace {

// Denormals as operands and as results are zero while this lives. What is computed meanwhile has to
// be in a function that is not inlined: compilers do not know that arithmetic depends on it.
class FlushedDenormals {
 public:
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kZeroInputs); }
  ~FlushedDenormals() { _mm_setcsr(before_); }
  FlushedDenormals(const FlushedDenormals&) = delete;
  FlushedDenormals& operator=(const FlushedDenormals&) = delete;

 private:
  static constexpr unsigned kFlushResults = 0x8000;
  static constexpr unsigned kZeroInputs = 0x40;
  const unsigned before_;
};

constexpr int kOrderTileRows = 4;
constexpr int64_t kOrderStepLines = 16;

constexpr int OrderTilePanels(int rows) {
  if (rows == 1) return 8;
  return rows == 2 ? 4 : 2;
}

// sums[(p * sum_rows + m) * 16 ..] of M rows and P panels.
template <int M, int P>
__attribute__((noinline)) void OrderTile(const std::byte* const* x_rows,
                                         const std::byte* const* panels, int64_t lines,
                                         int64_t next_bytes, float* sums_memory, int64_t sum_rows) {
  const std::byte* x[M];
  const std::byte* w[P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) w[p] = panels[p];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) sums[m][p] = Zero();
  }
  for (int64_t begin = 0; begin < lines; begin += kOrderStepLines) {
    const int64_t end = MinOf(begin + kOrderStepLines, lines);
    // A step ahead, in the last one at the panels after these.
    const int64_t ahead =
        end < lines ? kOrderStepLines * kLineBytes : next_bytes - begin * kLineBytes;
    Vec16 even[M][P];
    Vec16 odd[M][P];
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) even[m][p] = odd[m][p] = Zero();
    }
    for (int64_t line = begin; line < end; ++line) {
      Vec16 x_even[M];
      Vec16 x_odd[M];
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) {
        const __m512i pair = _mm512_set1_epi32(LoadAs<int32_t>(x[m] + line * 4));
        x_even[m] = {_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16))};
        x_odd[m] = {_mm512_castsi512_ps(
            _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
      }
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        const std::byte* at = w[p] + line * kLineBytes;
        __builtin_prefetch(at + ahead);
        const Vec16 w_even = LoadEven(at);
        const Vec16 w_odd = LoadOdd(at);
        MOESAIC_UNROLL
        for (int m = 0; m < M; ++m) {
          even[m][p] = Fma(x_even[m], w_even, even[m][p]);
          odd[m][p] = Fma(x_odd[m], w_odd, odd[m][p]);
        }
      }
    }
    if (end - begin < kOrderStepLines) {  // what a tile is filled up with: -0 becomes +0
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) {
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) {
          even[m][p] = Add(even[m][p], Zero());
          odd[m][p] = Add(odd[m][p], Zero());
        }
      }
    }
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) sums[m][p] = Add(sums[m][p], Add(even[m][p], odd[m][p]));
    }
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(sums_memory + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
}

template <int M>
void OrderTiles(const std::byte* const* x, const std::byte* const* w, int64_t panels, int64_t lines,
                int64_t next_bytes, float* sums) {
  constexpr int kPanels = OrderTilePanels(M);
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    OrderTile<M, kPanels>(x, w + p, lines, next_bytes, sums + p * M * kLanes, M);
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= panels; p += 2) {
      OrderTile<M, 2>(x, w + p, lines, next_bytes, sums + p * M * kLanes, M);
    }
  }
  for (; p < panels; ++p) {
    OrderTile<M, 1>(x, w + p, lines, next_bytes, sums + p * M * kLanes, M);
  }
}

struct AmxOrderProduct : PlainRows<kOrderTileRows> {
  static constexpr ActivationType kActivations = ActivationType::kBf16;
  static constexpr int64_t kTileRows = kOrderTileRows;
  static constexpr int64_t kLargeColumns = 8;
  static constexpr int64_t kMaxColumns = 8;

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) { return m <= 2 ? 8 : 4; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    const int64_t lines = shape.lines;
    const FlushedDenormals flushed;
    switch (m) {
      case 1:
        return OrderTiles<1>(x, w, columns, lines, next_bytes, sums);
      case 2:
        return OrderTiles<2>(x, w, columns, lines, next_bytes, sums);
      case 3:
        return OrderTiles<3>(x, w, columns, lines, next_bytes, sums);
      default:
        return OrderTiles<4>(x, w, columns, lines, next_bytes, sums);
    }
  }
};

}  // namespace
}  // namespace moesaic
