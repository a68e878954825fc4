#include "serving/model/pack_section.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "kernels/cpu/fp8_pack.h"
#include "kernels/cpu/gguf_blocks.h"
#include "kernels/cpu/mxfp4_repack.h"
#include "kernels/cpu/w4a16_pack.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/gguf_weights.h"

namespace moesaic {
namespace {

bool RepackMxfp4(const RowForm& form, std::span<const std::span<const std::byte>> pieces,
                 int64_t first, int64_t count, std::byte* to) {
  const int64_t stored = form.StoredRow(first);
  const int64_t block_bytes = form.cols / 2;
  const int64_t exponents = form.cols / kMxfp4Group;
  return RepackMxfp4Panel(pieces[0].data() + stored * block_bytes, form.distance() * block_bytes,
                          pieces[1].data() + stored * exponents, form.distance() * exponents, count,
                          form.cols, to);
}

// Rows that stay what they are: pack(row, stored row, its panel) for each.
template <class Pack>
void PackRows(const PackedMatrix& matrix, const RowForm& form, std::byte* to, Pack pack) {
  std::memset(to, 0, static_cast<size_t>(matrix.bytes()));
  for (int64_t row = 0; row < matrix.n; ++row) {
    pack(row, form.StoredRow(row), to + row / kPanelOutputs * matrix.panel_bytes());
  }
}

// Rows of GGUF's blocks.
void PackGgufRows(const PackedMatrix& matrix, const RowForm& form, std::span<const std::byte> rows,
                  std::byte* to) {
  const int64_t row_bytes = matrix.k / matrix.form.values * matrix.form.bytes;
  PackRows(matrix, form, to, [&](int64_t row, int64_t stored, std::byte* panel) {
    const auto blocks =
        rows.subspan(static_cast<size_t>(stored * row_bytes), static_cast<size_t>(row_bytes));
    PackGgufRow(matrix, row, blocks.data(), panel);
  });
}

void PackMxfp4Blocks(const PackedMatrix& matrix, int64_t row, const std::byte* codes,
                     const std::byte* exponents, std::byte* panel) {
  if (PackMxfp4Row(matrix, row, codes, exponents, panel)) return;
  Fail(ErrorKind::kCorrupt,
       "an expert's weights in MXFP4 have a scale that is no number (255); --dtype mxfp4-float32 "
       "takes them as NaN");
}

// Rows of MXFP4 codes beside their exponents, as GGUF's blocks.
void PackMxfp4Rows(const PackedMatrix& matrix, const RowForm& form,
                   std::span<const std::span<const std::byte>> pieces, std::byte* to) {
  PackRows(matrix, form, to, [&](int64_t row, int64_t stored, std::byte* panel) {
    PackMxfp4Blocks(matrix, row, pieces[0].data() + stored * matrix.k / 2,
                    pieces[1].data() + stored * matrix.k / kMxfp4Group, panel);
  });
}

// Rows of floats (dummies), rounded to MXFP4, as GGUF's blocks.
void PackFloatsAsMxfp4(const PackedMatrix& matrix, const CpuKernels& kernels, const RowForm& form,
                       std::span<const std::byte> rows, DType dtype, std::byte* to) {
  CHECK(form.AsTheyLie() && form.distance() == 1);
  const PackedMatrix rounded = {nullptr, WeightType::kMxfp4F32, kPanelOutputs, matrix.k};
  std::vector<std::byte> panel(static_cast<size_t>(rounded.bytes()));
  std::vector<std::byte> codes(static_cast<size_t>(matrix.k / 2));
  std::vector<std::byte> exponents(static_cast<size_t>(matrix.k / kMxfp4Group));
  PackRows(matrix, form, to, [&](int64_t row, int64_t stored, std::byte* packed) {
    const std::byte* const values = rows.data() + stored * matrix.k * DTypeBits(dtype) / 8;
    if (row % kPanelOutputs == 0) {
      kernels.pack_panels(values, dtype, matrix.k, std::min(kPanelOutputs, matrix.n - row),
                          matrix.k, rounded.type, 0, 1, panel.data());
    }
    TakeMxfp4Row(panel.data(), row % kPanelOutputs, matrix.k, codes.data(), exponents.data());
    PackMxfp4Blocks(matrix, row, codes.data(), exponents.data(), packed);
  });
}

// Rows of fp8 values beside the scales of blocks.
void PackFp8Rows(const PackedMatrix& matrix, const RowForm& form,
                 std::span<const std::span<const std::byte>> pieces, DType scale_type,
                 std::byte* to) {
  std::vector<float> scales(static_cast<size_t>(RoundUp(matrix.k, kQuantGroup) / kQuantGroup));
  PackRows(matrix, form, to, [&](int64_t row, int64_t stored, std::byte* panel) {
    Fp8GroupScales(pieces[1].data(), scale_type, form.blocks, stored, matrix.k, scales.data());
    PackFp8Row(matrix, row, pieces[0].data() + stored * matrix.k, scales.data(), panel);
  });
}

// Rows of packed int4 beside the scales of groups.
void PackW4A16Rows(const PackedMatrix& matrix, const RowForm& form,
                   std::span<const std::span<const std::byte>> pieces, std::byte* to) {
  const auto* const scales = reinterpret_cast<const uint16_t*>(pieces[1].data());
  PackRows(matrix, form, to, [&](int64_t row, int64_t stored, std::byte* panel) {
    PackW4A16Row(matrix, row, pieces[0].data() + stored * matrix.k / 2,
                 scales + stored * (matrix.k / form.group), form.group, panel);
  });
}

}  // namespace

void PackSection(const PackedMatrix& matrix, const CpuKernels& kernels, const RowForm& form,
                 std::span<const std::span<const std::byte>> pieces,
                 std::span<const DType> dtypes) {
  const int64_t k = matrix.k;
  const WeightType type = matrix.type;
  auto* const to = const_cast<std::byte*>(matrix.data);
  if (IsGguf(type) && form.values == StoredValues::kMxfp4) {
    return PackMxfp4Rows(matrix, form, pieces, to);
  }
  if (IsGguf(type) && form.values == StoredValues::kFloats && !IsPlain(matrix.form)) {
    return PackFloatsAsMxfp4(matrix, kernels, form, pieces[0], dtypes[0], to);
  }
  if (IsGguf(type)) return PackGgufRows(matrix, form, pieces[0], to);
  if (type == WeightType::kFp8 && form.values == StoredValues::kFp8) {
    return PackFp8Rows(matrix, form, pieces, dtypes[1], to);
  }
  if (type == WeightType::kW4A16 && form.values == StoredValues::kPackedInt4) {
    return PackW4A16Rows(matrix, form, pieces, to);
  }
  if (form.AsTheyLie()) {
    const std::byte* const first = pieces[0].data() + form.first * k * DTypeBits(dtypes[0]) / 8;
    kernels.pack_panels(first, dtypes[0], k * form.distance(), matrix.n, k, type, 0,
                        matrix.panels(), to);
    return;
  }
  // Of one panel. Beside reading the expert from disk an allocation is nothing.
  const auto rows = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(kPanelOutputs * k));
  const bool stays =
      form.values == StoredValues::kMxfp4 && form.Regular() && type == WeightType::kMxfp4F32;
  for (int64_t panel = 0; panel < matrix.panels(); ++panel) {
    const int64_t first = panel * kPanelOutputs;
    const int64_t count = std::min(kPanelOutputs, matrix.n - first);
    std::byte* const packed = to + panel * matrix.panel_bytes();
    if (stays && RepackMxfp4(form, pieces, first, count, packed)) continue;
    DecodeRows(form, pieces, dtypes, first, count, rows.get());
    kernels.pack_panels(rows.get(), DType::kF32, k, count, k, type, 0, 1, packed);
  }
}

}  // namespace moesaic
