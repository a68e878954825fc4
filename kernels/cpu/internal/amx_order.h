// Products with bf16 weights, plain and coded, in class kAmxBf16, in vectors: the bits of the tile
// registers' products (amx_bf16.h), for few rows, which no tile is filled with. Included after
// vec_avx512.h and coded_avx512.h.
//
// A step is 32 inputs, as there: a chain of multiply-adds over its even inputs and one over its odd
// ones, both from zero, their sum is added to the row's. Denormals are zero, which is a setting of
// the thread while a product runs.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/internal/coded_lines.h"
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
constexpr int64_t kOrderCodedSteps = kOrderStepLines / kCodedStepLines;

constexpr int OrderTilePanels(int rows) {
  if (rows == 1) return 8;
  return rows == 2 ? 4 : 2;
}

// What a step of a tile comes to joins the sums. filled_up: a tile would have had fewer lines, and
// zeros for the rest, which make +0 of -0.
template <int M, int P>
MOESAIC_INLINE void AddStep(bool filled_up, Vec16 (&even)[M][P], Vec16 (&odd)[M][P],
                            Vec16 (&sums)[M][P]) {
  if (filled_up) {
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

template <int M, int P>
MOESAIC_INLINE void StoreSums(const Vec16 (&sums)[M][P], float* memory, int64_t sum_rows) {
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(memory + (p * sum_rows + m) * kLanes, sums[m][p]);
  }
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
    AddStep(end - begin < kOrderStepLines, even, odd, sums);
  }
  StoreSums(sums, sums_memory, sum_rows);
}

// The same of coded weights, whose lines are decoded in registers; those of a step with exceptions
// by way of memory. lines: of bf16.
template <int M, int P>
__attribute__((noinline)) void CodedOrderTile(const std::byte* const* x_rows,
                                              const std::byte* const* w, int64_t k,
                                              int64_t next_bytes, float* sums_memory,
                                              int64_t sum_rows) {
  const int64_t lines = CeilDiv(k, 2);
  const int64_t steps = CeilDiv(k, kCodedInputs);
  const std::byte* x[M];
  CodedPanel panels[P];
  int64_t exception[P];  // the step of the next one
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) x[m] = x_rows[m];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) {
    panels[p] = CodedPanelAt(w[p], k);
    exception[p] = panels[p].rest.NextStep();
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) sums[m][p] = Zero();
  }
  Vec16 even[M][P];
  Vec16 odd[M][P];
  // A line of each panel, of inputs from x_offset bytes on.
  const auto add_line = [&](const PairLine(&line)[P], int64_t x_offset) MOESAIC_BODY {
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      const __m512i pair = _mm512_set1_epi32(LoadAs<int32_t>(x[m] + x_offset));
      const Vec16 x_even = EvenOf(pair);
      const Vec16 x_odd = OddOf(pair);
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        even[m][p] = Fma(x_even, EvenOf(line[p]), even[m][p]);
        odd[m][p] = Fma(x_odd, OddOf(line[p]), odd[m][p]);
      }
    }
  };
  const auto add_half = [&]<int kHalf>(int64_t step) MOESAIC_BODY {
    PairLine first[P];
    PairLine second[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      DecodeHalf<kHalf>(panels[p].data + step * kCodedStepBytes, panels[p].head, first[p],
                        second[p]);
    }
    const int64_t x_offset = (step * kCodedStepLines + 2 * kHalf) * 4;
    add_line(first, x_offset);
    add_line(second, x_offset + 4);
  };
  for (int64_t begin = 0; begin < steps; begin += kOrderCodedSteps) {
    const int64_t end = MinOf(begin + kOrderCodedSteps, steps);
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) even[m][p] = odd[m][p] = Zero();
    }
    for (int64_t step = begin; step < end; ++step) {
      bool plain = lines >= (step + 1) * kCodedStepLines;
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        panels[p].AskFor(step, steps, next_bytes);
        plain = plain && step != exception[p];
      }
      if (plain) {
        add_half.template operator()<0>(step);
        add_half.template operator()<1>(step);
        continue;
      }
      alignas(64) std::byte decoded[P][kPlainStepBytes];
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        panels[p].Decode(step, decoded[p]);
        exception[p] = panels[p].rest.NextStep();
      }
      const int64_t count = MinOf(lines - step * kCodedStepLines, kCodedStepLines);
      for (int64_t i = 0; i < count; ++i) {
        PairLine line[P];
        MOESAIC_UNROLL
        for (int p = 0; p < P; ++p) {
          line[p] = _mm512_loadu_si512(decoded[p] + i * kLineBytes);
        }
        add_line(line, (step * kCodedStepLines + i) * 4);
      }
    }
    AddStep(lines < (begin + kOrderCodedSteps) * kCodedStepLines, even, odd, sums);
  }
  StoreSums(sums, sums_memory, sum_rows);
}

// kCoded: the size is inputs, else lines.
template <bool kCoded, int M, int P>
MOESAIC_INLINE void RunOrderTile(const std::byte* const* x, const std::byte* const* w, int64_t size,
                                 int64_t next_bytes, float* sums) {
  if constexpr (kCoded) {
    CodedOrderTile<M, P>(x, w, size, next_bytes, sums, M);
  } else {
    OrderTile<M, P>(x, w, size, next_bytes, sums, M);
  }
}

template <bool kCoded, int M>
void OrderTiles(const std::byte* const* x, const std::byte* const* w, int64_t panels, int64_t size,
                int64_t next_bytes, float* sums) {
  constexpr int kPanels = kCoded ? CodedTilePanels(M) : OrderTilePanels(M);
  // From a tile's panels to those that come after them.
  const auto to_next = [&](int64_t p, int64_t count) {
    if (!kCoded) return next_bytes;
    return p + count < panels ? w[p + count] - w[p] : w[0] - w[p] + next_bytes;
  };
  int64_t p = 0;
  for (; p + kPanels <= panels; p += kPanels) {
    RunOrderTile<kCoded, M, kPanels>(x, w + p, size, to_next(p, kPanels), sums + p * M * kLanes);
  }
  if constexpr (kPanels > 2) {
    for (; p + 2 <= panels; p += 2) {
      RunOrderTile<kCoded, M, 2>(x, w + p, size, to_next(p, 2), sums + p * M * kLanes);
    }
  }
  for (; p < panels; ++p) {
    RunOrderTile<kCoded, M, 1>(x, w + p, size, to_next(p, 1), sums + p * M * kLanes);
  }
}

template <bool kCoded>
struct AmxOrderProductOf : PlainRows<kOrderTileRows> {
  static constexpr ActivationType kActivations = ActivationType::kBf16;
  static constexpr int64_t kTileRows = kOrderTileRows;
  static constexpr int64_t kLargeColumns = 8;
  static constexpr int64_t kMaxColumns = 8;

  MOESAIC_INLINE static int64_t ColumnsFor(int64_t m, const PanelShape&) { return m <= 2 ? 8 : 4; }

  static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
                      int64_t columns, const PanelShape& shape, int64_t next_bytes, std::byte*,
                      float* sums) {
    const int64_t size = kCoded ? shape.k : shape.lines;
    const FlushedDenormals flushed;
    switch (m) {
      case 1:
        return OrderTiles<kCoded, 1>(x, w, columns, size, next_bytes, sums);
      case 2:
        return OrderTiles<kCoded, 2>(x, w, columns, size, next_bytes, sums);
      case 3:
        return OrderTiles<kCoded, 3>(x, w, columns, size, next_bytes, sums);
      default:
        return OrderTiles<kCoded, 4>(x, w, columns, size, next_bytes, sums);
    }
  }
};

using AmxOrderProduct = AmxOrderProductOf<false>;
using AmxCodedOrderProduct = AmxOrderProductOf<true>;

}  // namespace
}  // namespace moesaic
