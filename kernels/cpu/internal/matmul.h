// Matrix products on packed panels, of any type of weights. Included after the tiles of the type:
//
//   struct Product {
//     static constexpr ActivationType kActivations;
//     static constexpr int64_t kTileRows;      // rows of the tallest tile
//     static constexpr int64_t kChunkRows;     // rows that Columns takes at most
//     static constexpr int64_t kLargeColumns;  // panels that it takes at most with so many rows,
//     static constexpr int64_t kMaxColumns;    // and with any number of rows
//     // Rows of a chunk of a product with panels of `lines` lines; a multiple of kTileRows.
//     static int64_t ChunkRows(int64_t lines);
//     // May copy rows to the scratch and point to them there.
//     static constexpr int64_t kScratchBytes;
//     static void PrepareRows(const std::byte** x, int64_t m, int64_t lines, std::byte* scratch);
//     // Panels that one pass over `m` rows computes.
//     static int64_t ColumnsFor(int64_t m);
//     // sums[(column * m + row) * 16 ..] of m rows of x with panels w of `lines` lines. The pass
//     // after this one takes panels that begin `next_bytes` further on.
//     static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
//                         int64_t columns, int64_t lines, int64_t next_bytes, float* sums);
//   };
//
// PlainRows (plain_rows.h) has what concerns rows for products that take them as they lie.
#pragma once

#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/quantize.h"

namespace moesaic {
namespace {

// First row of a chunk of `m` rows: chunks are about equal, and all but the last consist of the
// tallest tiles, which are the fastest.
template <class Product>
MOESAIC_INLINE int64_t ChunkBegin(int64_t m, int64_t chunk, int64_t chunks) {
  return MinOf(chunk * CeilDiv(m, Product::kTileRows) / chunks * Product::kTileRows, m);
}

template <class Product>
void MatmulOf(const MatmulArgs& args) {
  alignas(64) float sums[Product::kChunkRows * Product::kLargeColumns * kLanes];
  alignas(64) std::byte scratch[Product::kScratchBytes];
  const std::byte* x[Product::kChunkRows];
  const std::byte* w[Product::kMaxColumns];
  const int64_t lines = PanelLines(args.w.type, args.w.k);
  const int64_t chunks = CeilDiv(args.m, Product::ChunkRows(lines));
  const bool stream = args.y_is_large && reinterpret_cast<uintptr_t>(args.y) % kLineBytes == 0 &&
                      args.y_stride % kLanes == 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t row = ChunkBegin<Product>(args.m, chunk, chunks);
    const int64_t m = ChunkBegin<Product>(args.m, chunk + 1, chunks) - row;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t from = args.x_rows != nullptr ? args.x_rows[row + r] : row + r;
      x[r] = args.x + from * args.x_stride_bytes;
    }
    Product::PrepareRows(x, m, lines, scratch);
    const int64_t step = Product::ColumnsFor(m);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += step) {
      const int64_t columns = MinOf(args.panel_end - panel, step);
      for (int64_t c = 0; c < columns; ++c) w[c] = args.w.data + (panel + c) * lines * kLineBytes;
      Product::Columns(x, m, w, columns, lines, step * lines * kLineBytes, sums);
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t output = (panel + c) * kLanes;
        const int64_t lanes = MinOf(args.w.n - output, kLanes);
        const Vec16 bias = args.bias != nullptr ? LoadFirst(args.bias + output, lanes) : Zero();
        for (int64_t r = 0; r < m; ++r) {
          const int64_t to = args.y_rows != nullptr ? args.y_rows[row + r] : row + r;
          float* y = args.y + to * args.y_stride + output;
          Vec16 sum = Load(sums + (c * m + r) * kLanes);
          if (args.bias != nullptr) sum = Add(sum, bias);
          if (lanes == kLanes && stream) {
            StoreStream(y, sum);
          } else if (lanes == kLanes) {
            Store(y, sum);
          } else {
            StoreFirst(y, lanes, sum);
          }
        }
      }
    }
  }
  if (stream) EndStreams();
}

// The unit of a row's padding: 16 bf16.
struct Padding {
  std::byte zeros[32] = {};
};

template <class Product>
void GateUpOf(const GateUpArgs& args) {
  constexpr ActivationType kActivations = Product::kActivations;
  constexpr int64_t kElementBytes = kActivations == ActivationType::kF32 ? 4 : 2;
  alignas(64) float sums[Product::kChunkRows * Product::kLargeColumns * kLanes];
  alignas(64) std::byte scratch[Product::kScratchBytes];
  const std::byte* x[Product::kChunkRows];
  const std::byte* w[Product::kMaxColumns];
  const int64_t lines = PanelLines(args.gate.type, args.gate.k);
  const int64_t panels = CeilDiv(args.gate.n, kLanes);
  const int64_t chunks = CeilDiv(args.m, Product::ChunkRows(lines));
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t row = ChunkBegin<Product>(args.m, chunk, chunks);
    const int64_t m = ChunkBegin<Product>(args.m, chunk + 1, chunks) - row;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t from = args.x_rows != nullptr ? args.x_rows[row + r] : row + r;
      x[r] = args.x + from * args.x_stride_bytes;
    }
    Product::PrepareRows(x, m, lines, scratch);
    const int64_t step = Product::ColumnsFor(m) / 2;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += step) {
      const int64_t pairs = MinOf(args.panel_end - panel, step);
      for (int64_t c = 0; c < pairs; ++c) {
        w[2 * c] = args.gate.data + (panel + c) * lines * kLineBytes;
        w[2 * c + 1] = args.up.data + (panel + c) * lines * kLineBytes;
      }
      Product::Columns(x, m, w, 2 * pairs, lines, step * lines * kLineBytes, sums);
      // Of one row and panel, zero past the last output.
      const auto hidden = [&](int64_t c, int64_t r) {
        const Vec16 gate = Load(sums + (2 * c * m + r) * kLanes);
        const Vec16 up = Load(sums + ((2 * c + 1) * m + r) * kLanes);
        const int64_t lanes = MinOf(args.gate.n - (panel + c) * kLanes, kLanes);
        return KeepRange(Mul(Silu(gate), up), 0, lanes, Zero());
      };
      if constexpr (kActivations == ActivationType::kInt8) {
        for (int64_t c = 0; c < pairs; c += 2) {
          for (int64_t r = 0; r < m; ++r) {
            std::byte* h = args.h + (row + r) * args.h_stride_bytes;
            QuantizeActivations(hidden(c, r), c + 1 < pairs ? hidden(c + 1, r) : Zero(),
                                reinterpret_cast<ActivationGroup*>(h) + (panel + c) / 2);
          }
        }
      } else {
        for (int64_t c = 0; c < pairs; ++c) {
          for (int64_t r = 0; r < m; ++r) {
            std::byte* h =
                args.h + (row + r) * args.h_stride_bytes + (panel + c) * kLanes * kElementBytes;
            if constexpr (kActivations == ActivationType::kF32) {
              Store(h, hidden(c, r));
            } else {
              StoreBf16(h, hidden(c, r));
            }
          }
        }
      }
    }
    if (kActivations != ActivationType::kInt8 && args.panel_end == panels) {
      const int64_t row_bytes = ActivationRowBytes(kActivations, args.gate.n);
      for (int64_t r = 0; r < m; ++r) {
        std::byte* h = args.h + (row + r) * args.h_stride_bytes;
        for (int64_t at = panels * kLanes * kElementBytes; at < row_bytes; at += 32) {
          StoreAs(h + at, Padding{});
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
