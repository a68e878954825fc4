// Packing of panels of bf16 and f32. Included after Vec16.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

MOESAIC_INLINE int64_t ElementBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

MOESAIC_INLINE Vec16 LoadElements(const std::byte* src, DType dtype) {
  if (dtype == DType::kF32) return Load(src);
  if (dtype == DType::kBF16) return LoadBf16(src);
  return LoadF16(src);
}

// `count` (1 to 16) elements as 16 dwords of a tile row: 16 f32, or the bf16 of 16 elements (8
// dwords).
MOESAIC_INLINE void ConvertElements(const std::byte* src, DType dtype, int64_t count,
                                    WeightType type, std::byte* out) {
  std::byte padded[64] = {};
  if (count < kLanes) {
    __builtin_memcpy(padded, src, static_cast<size_t>(count * ElementBytes(dtype)));
    src = padded;
  }
  if (type == WeightType::kF32) {
    Store(out, LoadElements(src, dtype));
  } else if (dtype == DType::kBF16) {
    __builtin_memcpy(out, src, 32);
  } else {
    StoreBf16(out, LoadElements(src, dtype));
  }
}

// A panel is a transposition of 16 x 16 tiles of dwords: a dword is an f32 or a pair of bf16 of one
// row. `stream`: past the caches, to aligned memory.
void PackFloatPanels(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
                     WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst,
                     bool stream) {
  const int64_t element_bytes = ElementBytes(src_dtype);
  const int64_t stride_bytes = src_stride * element_bytes;
  const int64_t lines = PanelLines(type, k);
  const int64_t tile_inputs = type == WeightType::kBf16 ? 32 : 16;
  const bool same_type =
      type == WeightType::kBf16 ? src_dtype == DType::kBF16 : src_dtype == DType::kF32;
  alignas(64) std::byte tile[16 * 64];
  alignas(64) std::byte tail[16 * 64];
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t rows = MinOf(n - panel * kLanes, kLanes);
    const std::byte* from = static_cast<const std::byte*>(src) + panel * kLanes * stride_bytes;
    std::byte* to = dst + panel * lines * kLineBytes;
    for (int64_t i = 0; i < k; i += tile_inputs, to += 16 * kLineBytes) {
      const int64_t inputs = MinOf(k - i, tile_inputs);
      const bool whole = inputs == tile_inputs && rows == kLanes;
      if (whole && same_type) {
        (stream ? TransposeStream16 : Transpose16)(from + i * element_bytes, stride_bytes, to);
        continue;
      }
      if (!whole) __builtin_memset(tile, 0, sizeof(tile));
      for (int64_t r = 0; r < rows; ++r) {
        const std::byte* row = from + r * stride_bytes + i * element_bytes;
        for (int64_t j = 0; j < inputs; j += kLanes) {
          ConvertElements(row + j * element_bytes, src_dtype, MinOf(inputs - j, kLanes), type,
                          tile + r * 64 + j * 2);
        }
      }
      const int64_t tile_lines = PanelLines(type, inputs);
      if (tile_lines == 16) {
        Transpose16(tile, 64, to);
      } else {
        Transpose16(tile, 64, tail);
        __builtin_memcpy(to, tail, static_cast<size_t>(tile_lines * kLineBytes));
      }
    }
  }
  if (stream) EndStreams();
}

void PackFloats(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
                WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst) {
  // Packed by one thread, read by others: through memory, most likely.
  const bool stream = reinterpret_cast<uintptr_t>(dst) % kLineBytes == 0;
  PackFloatPanels(src, src_dtype, src_stride, n, k, type, panel_begin, panel_end, dst, stream);
}

}  // namespace
}  // namespace moesaic
