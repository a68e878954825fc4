// Packing of weight panels. Included after Vec16 and math.h.
#pragma once

#include "kernels/cpu/internal/coded_packing.h"
#include "kernels/cpu/internal/float_packing.h"
#include "kernels/cpu/internal/fp8_packing.h"
#include "kernels/cpu/internal/gguf_values.h"
#include "kernels/cpu/internal/math.h"
#include "kernels/cpu/internal/mxfp4.h"
#include "kernels/cpu/internal/quantize.h"
#include "kernels/cpu/internal/w4a16.h"

namespace moesaic {
namespace {

// Part of a group of weights, [16][16]: inputs [i, i + 16) of up to 16 rows, transposed.
MOESAIC_INLINE void LoadInputs(const std::byte* from, DType dtype, int64_t stride_bytes,
                               int64_t rows, int64_t inputs, float* weights) {
  alignas(64) std::byte tile[16 * 64];
  if (rows < kLanes || inputs < kLanes) __builtin_memset(tile, 0, sizeof(tile));
  if (inputs > 0) {
    for (int64_t r = 0; r < rows; ++r) {
      ConvertElements(from + r * stride_bytes, dtype, MinOf(inputs, kLanes), WeightType::kF32,
                      tile + r * 64);
    }
  }
  Transpose16(tile, 64, reinterpret_cast<std::byte*>(weights));
}

void PackIntegers(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
                  WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst) {
  const int64_t element_bytes = ElementBytes(src_dtype);
  const int64_t stride_bytes = src_stride * element_bytes;
  const int64_t groups = CeilDiv(k, kQuantGroup);
  alignas(64) float weights[kQuantGroup * kLanes];
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t rows = MinOf(n - panel * kLanes, kLanes);
    const std::byte* from = static_cast<const std::byte*>(src) + panel * kLanes * stride_bytes;
    std::byte* to = dst + panel * PanelLines(type, k) * kLineBytes;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = group * kQuantGroup;
      const int64_t subgroups = MinOf(CeilDiv(k - first, kQuantSubgroup), kSubgroups);
      for (int64_t i = 0; i < subgroups * kQuantSubgroup; i += kLanes) {
        LoadInputs(from + (first + i) * element_bytes, src_dtype, stride_bytes, rows, k - first - i,
                   weights + i * kLanes);
      }
      (type == WeightType::kInt8 ? QuantizeInt8 : QuantizeInt4)(
          weights, subgroups, to + GroupOffset(type, group), to + ScalesOffset(type, group));
    }
    if (groups % 2 == 1) __builtin_memset(to + ScalesOffset(type, groups), 0, kScaleBytes);
  }
}

template <class Format>
void PackFourBits(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
                  WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst) {
  const int64_t element_bytes = ElementBytes(src_dtype);
  const int64_t stride_bytes = src_stride * element_bytes;
  const int64_t groups = CeilDiv(k, kFourBitGroup);
  alignas(64) float weights[kFourBitGroup * kLanes];
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t rows = MinOf(n - panel * kLanes, kLanes);
    const std::byte* from = static_cast<const std::byte*>(src) + panel * kLanes * stride_bytes;
    std::byte* to = dst + panel * PanelLines(type, k) * kLineBytes;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = group * kFourBitGroup;
      for (int64_t i = 0; i < kFourBitGroup; i += kLanes) {
        LoadInputs(from + (first + i) * element_bytes, src_dtype, stride_bytes, rows, k - first - i,
                   weights + i * kLanes);
      }
      // Of groups that are not there, too.
      if (group % Format::kShared == 0) {
        __builtin_memset(to + Format::ScalesOffset(group), 0, kLineBytes);
      }
      Format::Quantize(weights, to + Format::GroupOffset(group), to + Format::ScalesOffset(group));
    }
  }
}

void PackFp8(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
             WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst) {
  const int64_t element_bytes = ElementBytes(src_dtype);
  const int64_t stride_bytes = src_stride * element_bytes;
  alignas(64) float weights[kQuantGroup * kLanes];
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const int64_t rows = MinOf(n - panel * kLanes, kLanes);
    const std::byte* from = static_cast<const std::byte*>(src) + panel * kLanes * stride_bytes;
    std::byte* to = dst + panel * PanelLines(type, k) * kLineBytes;
    for (int64_t first = 0; first < k; first += kQuantGroup) {
      for (int64_t i = 0; i < kQuantGroup; i += kLanes) {
        LoadInputs(from + (first + i) * element_bytes, src_dtype, stride_bytes, rows, k - first - i,
                   weights + i * kLanes);
      }
      to = QuantizeFp8(weights, MinOf(k - first, kQuantGroup), to);
    }
  }
}

void PackPanels(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
                WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst) {
  const bool integers = type == WeightType::kInt8 || type == WeightType::kInt4;
  auto* const pack = type == WeightType::kMxfp4F32    ? PackFourBits<Mxfp4Format>
                     : type == WeightType::kW4A16     ? PackFourBits<W4A16Format>
                     : type == WeightType::kFp8       ? PackFp8
                     : type == WeightType::kBf16Coded ? PackCoded
                     : integers                       ? PackIntegers
                                                      : PackFloats;
  pack(src, src_dtype, src_stride, n, k, type, panel_begin, panel_end, dst);
}

void UnpackIntegers(const PackedMatrix& w, int64_t row, float* out) {
  const int64_t lane = row % kLanes;
  const std::byte* panel = w.data + row / kLanes * PanelLines(w.type, w.k) * kLineBytes;
  for (int64_t i = 0; i < w.k; ++i) {
    const int64_t group = i / kQuantGroup;
    const int64_t subgroup = i % kQuantGroup / kQuantSubgroup;
    const int64_t input = i % kQuantSubgroup;
    const std::byte* lines = panel + GroupOffset(w.type, group);
    const float scale = F16ToF32(LoadAs<uint16_t>(panel + ScalesOffset(w.type, group) + lane * 2));
    int level;
    if (w.type == WeightType::kInt8) {
      lines += subgroup * SubgroupLines(w.type) * kLineBytes;
      level = LoadAs<uint8_t>(lines + input / 4 * kLineBytes + lane * 4 + input % 4) - 128;
    } else {
      const auto multiplier = LoadAs<uint8_t>(lines + lane * 4 + subgroup);
      lines += (1 + subgroup * SubgroupLines(w.type)) * kLineBytes;
      const auto halves = LoadAs<uint8_t>(lines + input / 8 * kLineBytes + lane * 4 + input % 4);
      const int half = input % 8 < 4 ? halves & 15 : halves >> 4;
      level = (multiplier & 127) * (half - 8 + (multiplier >> 7));
    }
    out[i] = static_cast<float>(level) * scale;
  }
}

void UnpackRow(const PackedMatrix& w, int64_t row, float* out) {
  if (w.type == WeightType::kInt8 || w.type == WeightType::kInt4) {
    return UnpackIntegers(w, row, out);
  }
  if (w.type == WeightType::kMxfp4F32) return UnpackFourBits<Mxfp4Format>(w, row, out);
  if (w.type == WeightType::kW4A16) return UnpackFourBits<W4A16Format>(w, row, out);
  if (w.type == WeightType::kFp8) return UnpackFp8(w, row, out);
  if (w.type == WeightType::kBf16Coded) return UnpackCoded(w, row, out);
  if (IsGguf(w.type)) {
    const std::byte* const panel = w.data + row / kLanes * PanelLines(w) * kLineBytes;
    const GgufReadBytes read = GgufReadOf(w.form.id);
    std::byte block[kMaxGgufBlockBytes];
    for (int64_t i = 0; i < w.k; i += w.form.values) {
      TakeGgufBlock(w.form, panel, w.k / w.form.values, i / w.form.values, row % kLanes, block);
      read(reinterpret_cast<GgufBytes>(block), w.form.values, out + i);
    }
    return;
  }
  const int64_t lines = PanelLines(w.type, w.k);
  const std::byte* from = w.data + row / kLanes * lines * kLineBytes + row % kLanes * 4;
  if (w.type == WeightType::kF32) {
    for (int64_t i = 0; i < w.k; ++i) out[i] = LoadAs<float>(from + i * kLineBytes);
    return;
  }
  for (int64_t i = 0; i < w.k; ++i) {
    out[i] = WidenBf16(LoadAs<uint16_t>(from + i / 2 * kLineBytes + i % 2 * 2));
  }
}

}  // namespace
}  // namespace moesaic
