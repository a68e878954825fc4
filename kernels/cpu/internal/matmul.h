// Matrix products on packed panels, of any type of weights. Included after the tiles of the type:
//
//   struct Product {
//     static constexpr ActivationType kActivations;
//     static constexpr int64_t kTileRows;      // rows of the tallest tile
//     static constexpr int64_t kChunkRows;     // rows that Columns takes at most
//     static constexpr int64_t kLargeColumns;  // panels that it takes at most with so many rows,
//     static constexpr int64_t kMaxColumns;    // and with any number of rows
//     // Rows of a chunk of a product; a multiple of kTileRows.
//     static int64_t ChunkRows(const PanelShape& shape);
//     static constexpr int64_t kScratchBytes;
//     // Before the columns of a chunk. May copy rows to the scratch and point to them there.
//     static void PrepareRows(const std::byte** x, int64_t m, const PanelShape& shape,
//                             std::byte* scratch);
//     // Panels that one pass over `m` rows computes.
//     static int64_t ColumnsFor(int64_t m, const PanelShape& shape);
//     // sums[(column * m + row) * 16 ..] of m rows of x with panels w. The pass after this one
//     // takes panels that begin `next_bytes` further on. Parts of rows that PrepareRows left where
//     // they were may be copied to the scratch.
//     static void Columns(const std::byte* const* x, int64_t m, const std::byte* const* w,
//                         int64_t columns, const PanelShape& shape, int64_t next_bytes,
//                         std::byte* scratch, float* sums);
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
  const PanelShape shape = {args.w.k, PanelLines(args.w), {args.w.form, args.w.form}};
  const int64_t panel_bytes = shape.lines * kLineBytes;
  const int64_t chunks = CeilDiv(args.m, Product::ChunkRows(shape));
  const bool stream = args.y_is_large && reinterpret_cast<uintptr_t>(args.y) % kLineBytes == 0 &&
                      args.y_stride % kLanes == 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t row = ChunkBegin<Product>(args.m, chunk, chunks);
    const int64_t m = ChunkBegin<Product>(args.m, chunk + 1, chunks) - row;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t from = args.x_rows != nullptr ? args.x_rows[row + r] : row + r;
      x[r] = args.x + from * args.x_stride_bytes;
    }
    Product::PrepareRows(x, m, shape, scratch);
    const int64_t step = Product::ColumnsFor(m, shape);
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += step) {
      const int64_t columns = MinOf(args.panel_end - panel, step);
      for (int64_t c = 0; c < columns; ++c) w[c] = args.w.data + (panel + c) * panel_bytes;
      Product::Columns(x, m, w, columns, shape, step * panel_bytes, scratch, sums);
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
  constexpr bool kSums = kActivations == ActivationType::kInt8Sums;
  constexpr bool kIntegers = kActivations == ActivationType::kInt8 || kSums;
  // Integers: the hidden activations of the panels of a group, [rows][kQuantGroup].
  alignas(64) float group_of_h[kIntegers ? Product::kChunkRows * kQuantGroup : 1];
  alignas(64) float sums[Product::kChunkRows * Product::kLargeColumns * kLanes];
  alignas(64) std::byte scratch[Product::kScratchBytes];
  const std::byte* x[Product::kChunkRows];
  const std::byte* w[Product::kMaxColumns];
  const PanelShape shape = {args.gate.k, PanelLines(args.gate), {args.gate.form, args.up.form}};
  const int64_t panel_bytes = shape.lines * kLineBytes;
  const int64_t up_bytes = PanelLines(args.up) * kLineBytes;
  const int64_t panels = CeilDiv(args.gate.n, kLanes);
  const int64_t chunks = CeilDiv(args.m, Product::ChunkRows(shape));
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t row = ChunkBegin<Product>(args.m, chunk, chunks);
    const int64_t m = ChunkBegin<Product>(args.m, chunk + 1, chunks) - row;
    for (int64_t r = 0; r < m; ++r) {
      const int64_t from = args.x_rows != nullptr ? args.x_rows[row + r] : row + r;
      x[r] = args.x + from * args.x_stride_bytes;
    }
    Product::PrepareRows(x, m, shape, scratch);
    const int64_t step = Product::ColumnsFor(m, shape) / 2;
    for (int64_t panel = args.panel_begin; panel < args.panel_end; panel += step) {
      const int64_t pairs = MinOf(args.panel_end - panel, step);
      for (int64_t c = 0; c < pairs; ++c) {
        w[2 * c] = args.gate.data + (panel + c) * panel_bytes;
        w[2 * c + 1] = args.up.data + (panel + c) * up_bytes;
      }
      Product::Columns(x, m, w, 2 * pairs, shape, step * panel_bytes, scratch, sums);
      // Of one row and panel, zero past the last output.
      const auto hidden = [&](int64_t c, int64_t r) {
        Vec16 gate = Load(sums + (2 * c * m + r) * kLanes);
        Vec16 up = Load(sums + ((2 * c + 1) * m + r) * kLanes);
        const int64_t output = (panel + c) * kLanes;
        const int64_t lanes = MinOf(args.gate.n - output, kLanes);
        if (args.gate_bias != nullptr) {
          gate = Add(gate, LoadFirst(args.gate_bias + output, lanes));
          up = Add(up, LoadFirst(args.up_bias + output, lanes));
        }
        const Vec16 h = args.activation.clamped
                            ? ClampedSwiglu(gate, up, args.activation.alpha, args.activation.limit)
                            : Mul(Silu(gate), up);
        return KeepRange(h, 0, lanes, Zero());
      };
      if constexpr (kIntegers) {
        for (int64_t c = 0; c < pairs; ++c) {
          float* to = group_of_h + (panel + c) % kGroupPanels * kLanes;
          for (int64_t r = 0; r < m; ++r, to += kQuantGroup) Store(to, hidden(c, r));
        }
        const int64_t end = panel + pairs;
        if (end % kGroupPanels == 0 || end == args.panel_end) {
          const int64_t group = panel / kGroupPanels;
          const int64_t outputs = MinOf(args.gate.n - group * kQuantGroup, kQuantGroup);
          for (int64_t r = 0; r < m; ++r) {
            std::byte* h = args.h + (row + r) * args.h_stride_bytes;
            auto* scales =
                reinterpret_cast<ActivationScale*>(h + ActivationScalesOffset(args.gate.n));
            QuantizeActivations(group_of_h + r * kQuantGroup, outputs,
                                reinterpret_cast<int8_t*>(h) + group * kQuantGroup, scales + group);
            if constexpr (kSums) SumGroup(h, args.gate.n, group);
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
    if (!kIntegers && args.panel_end == panels) {
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
