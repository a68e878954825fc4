#include "serving/model/weight_loader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "core/base/check.h"
#include "core/base/error.h"
#include "kernels/cpu/coded_weights.h"
#include "kernels/cpu/fp8_pack.h"
#include "kernels/cpu/gguf_blocks.h"

namespace moesaic {
namespace {

// Rows are read and packed in pieces of about this many bytes: bounds the staging memory, and lets
// the packing of one piece use all threads.
constexpr int64_t kStagingBytes = int64_t{16} << 20;

void Widen(const std::byte* raw, DType dtype, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::kF32:
        out[i] = reinterpret_cast<const float*>(raw)[i];
        break;
      case DType::kF16:
        out[i] = F16ToF32(reinterpret_cast<const uint16_t*>(raw)[i]);
        break;
      default:
        out[i] = Bf16ToF32(reinterpret_cast<const uint16_t*>(raw)[i]);
    }
  }
}

}  // namespace

void WeightLoader::Matrices(const MatrixRows& target, const std::vector<SlotRows>& rows,
                            const TensorPlan& plan, int64_t layer) {
  auto next = rows.begin();
  for (const PackedMatrix& matrix : target.matrices) {
    std::vector<RowPart> parts;
    for (int64_t n = 0; n < matrix.n; n += next->rows, ++next) {
      CHECK(next != rows.end());
      parts.push_back({plan.At(next->slot, layer), next->rows});
    }
    Matrix(matrix, parts);
  }
  CHECK(next == rows.end());
}

void WeightLoader::Matrix(const PackedMatrix& target, const std::vector<RowPart>& parts) {
  if (uncoded_ != nullptr && target.type != WeightType::kBf16Coded) return;
  if (IsGguf(target.type)) return Blocks(target, parts);
  if (target.type == WeightType::kFp8 && Fp8(target, parts)) return;
  int64_t first_row = 0;
  const int64_t k = target.k;
  std::vector<DType> dtypes;
  for (const RowPart& part : parts) {
    const std::array<int64_t, 2> shape = {part.rows, k};
    dtypes.push_back(source_.Require(part.tensor, shape));
    if (dtypes.back() != dtypes.front()) {
      Fail(ErrorKind::kUnsupported, "tensor {} is {} but {} is {}: they must be of one type",
           part.tensor.name, DTypeName(dtypes.back()), parts.front().tensor.name,
           DTypeName(dtypes.front()));
    }
    first_row += part.rows;
  }
  CHECK_EQ(first_row, target.n);
  const DType dtype = dtypes.front();
  const int64_t row_bytes = k * DTypeBits(dtype) / 8;
  const auto panel_bytes = static_cast<size_t>(target.panel_bytes());
  std::vector<AlignedBuffer> coded;  // a panel of each thread, where nothing is kept
  if (uncoded_ != nullptr) {
    coded.reserve(static_cast<size_t>(pool_.threads()));
    for (int i = 0; i < pool_.threads(); ++i) coded.emplace_back(panel_bytes);
  }
  std::atomic<bool> fits = true;
  const int64_t block_rows =
      std::max<int64_t>(1, kStagingBytes / row_bytes / kPanelOutputs) * kPanelOutputs;
  for (int64_t row = 0; row < target.n; row += block_rows) {
    const int64_t rows = std::min(block_rows, target.n - row);
    ReadAcross(parts, row, row + rows, k, row_bytes);
    const int64_t first_panel = row / kPanelOutputs;
    const int64_t panels = (rows + kPanelOutputs - 1) / kPanelOutputs;
    auto* destination = const_cast<std::byte*>(target.data) + first_panel * target.panel_bytes();
    pool_.ParallelFor(panels, [&](int64_t panel, int thread) {
      if (uncoded_ == nullptr) {
        kernels_.pack_panels(staging_.data(), dtype, k, rows, k, target.type, panel, panel + 1,
                             destination);
        return;
      }
      std::byte* const to = coded[static_cast<size_t>(thread)].data();
      const std::byte* const first = staging_.data() + panel * kPanelOutputs * row_bytes;
      const int64_t count = std::min(kPanelOutputs, rows - panel * kPanelOutputs);
      kernels_.pack_panels(first, dtype, k, count, k, target.type, 0, 1, to);
      if (!CodedPanelFits(to)) fits = false;
    });
    Packed(panels * target.panel_bytes());
  }
  if (uncoded_ != nullptr) {
    for (const RowPart& part : parts) {
      if (!fits) uncoded_->insert(part.tensor.name);
    }
    return;
  }
  // What was found before is in the plan of the memory.
  if (target.type == WeightType::kBf16Coded && !CodedMatrixFits(target)) {
    Fail(ErrorKind::kCorrupt,
         "tensor {} has more exponents than when the model was opened: the file was changed",
         parts.front().tensor.name);
  }
}

// In pieces, as Matrix.
void WeightLoader::Blocks(const PackedMatrix& target, const std::vector<RowPart>& parts) {
  const GgufForm& form = target.form;
  const int64_t k = target.k;
  const int64_t row_bytes = k / form.values * form.bytes;
  const int64_t piece_rows =
      std::max<int64_t>(1, kStagingBytes / row_bytes / kPanelOutputs) * kPanelOutputs;
  auto* const panels = const_cast<std::byte*>(target.data);
  std::memset(panels, 0, static_cast<size_t>(target.bytes()));
  AlignedBuffer piece(static_cast<size_t>(std::min(piece_rows, target.n) * row_bytes));
  int64_t part_begin = 0;
  for (const RowPart& part : parts) {
    const DType dtype = source_.Require(part.tensor, std::array<int64_t, 2>{part.rows, k});
    for (int64_t row = 0; row < part.rows; row += piece_rows) {
      const int64_t rows = std::min(piece_rows, part.rows - row);
      if (form.is_f32()) {
        const int64_t bytes = rows * k * DTypeBits(dtype) / 8;
        std::byte* const raw = Staging(bytes);
        source_.ReadRows(part.tensor, row, row + rows, k, {raw, static_cast<size_t>(bytes)});
        Widen(raw, dtype, rows * k, piece.as<float>());
      } else {
        source_.ReadStoredRows(part.tensor, row, row + rows, k,
                               {piece.data(), static_cast<size_t>(rows * row_bytes)});
      }
      pool_.ParallelFor(rows, [&](int64_t i, int) {
        const int64_t at = part_begin + row + i;
        PackGgufRow(target, at, piece.data() + i * row_bytes,
                    panels + at / kPanelOutputs * target.panel_bytes());
      });
    }
    part_begin += part.rows;
  }
  CHECK_EQ(part_begin, target.n);
  Packed(target.bytes());
}

// In pieces, as Matrix.
bool WeightLoader::Fp8(const PackedMatrix& target, const std::vector<RowPart>& parts) {
  const int64_t k = target.k;
  const int64_t groups = (k + kQuantGroup - 1) / kQuantGroup;
  const int64_t piece_rows = std::max<int64_t>(1, kStagingBytes / k);
  auto* const panels = const_cast<std::byte*>(target.data);
  std::memset(panels, 0, static_cast<size_t>(target.bytes()));
  std::vector<float> scales(static_cast<size_t>(std::min(piece_rows, target.n) * groups));
  int64_t part_begin = 0;
  for (const RowPart& part : parts) {
    for (int64_t row = 0; row < part.rows; row += piece_rows) {
      const int64_t rows = std::min(piece_rows, part.rows - row);
      std::byte* const codes = Staging(rows * k);
      if (!Fp8Rows(part.tensor, part.rows, k, row, row + rows, codes, scales.data())) {
        CHECK(part_begin == 0 && row == 0);
        return false;
      }
      pool_.ParallelFor(rows, [&](int64_t i, int) {
        const int64_t at = part_begin + row + i;
        PackFp8Row(target, at, codes + i * k, scales.data() + i * groups,
                   panels + at / kPanelOutputs * target.panel_bytes());
      });
    }
    part_begin += part.rows;
  }
  CHECK_EQ(part_begin, target.n);
  Packed(target.bytes());
  return true;
}

bool WeightLoader::Fp8Rows(const PlannedTensor& tensor, int64_t n, int64_t k, int64_t begin,
                           int64_t end, std::byte* codes, float* scales) {
  source_.Require(tensor, std::array<int64_t, 2>{n, k});
  const auto rows = static_cast<size_t>(end - begin);
  const auto groups = static_cast<size_t>((k + kQuantGroup - 1) / kQuantGroup);
  return source_.ReadFp8Rows(tensor, begin, end, k, {codes, rows * static_cast<size_t>(k)},
                             {scales, rows * groups});
}

void WeightLoader::PackFp8(const PackedMatrix& target, const std::byte* codes,
                           const float* scales) {
  if (uncoded_ != nullptr) return;
  const int64_t groups = (target.k + kQuantGroup - 1) / kQuantGroup;
  auto* const destination = const_cast<std::byte*>(target.data);
  std::memset(destination, 0, static_cast<size_t>(target.bytes()));
  pool_.ParallelFor(target.n, [&](int64_t row, int) {
    PackFp8Row(target, row, codes + row * target.k, scales + row * groups,
               destination + row / kPanelOutputs * target.panel_bytes());
  });
  Packed(target.bytes());
}

void WeightLoader::Rows(const PlannedTensor& tensor, int64_t n, int64_t k, int64_t begin,
                        int64_t end, float* out) {
  ReadFloats(tensor, std::array<int64_t, 2>{n, k}, begin, end, out);
}

void WeightLoader::Pack(const PackedMatrix& target, const float* rows) {
  if (uncoded_ != nullptr) return;  // what is computed is not coded
  Packed(target.bytes());
  auto* const destination = const_cast<std::byte*>(target.data);
  if (IsGguf(target.type)) {
    CHECK(target.form.is_f32());
    std::memset(destination, 0, static_cast<size_t>(target.bytes()));
    pool_.ParallelFor(target.n, [&](int64_t row, int) {
      PackGgufRow(target, row, reinterpret_cast<const std::byte*>(rows + row * target.k),
                  destination + row / kPanelOutputs * target.panel_bytes());
    });
    return;
  }
  pool_.ParallelFor(target.panels(), [&](int64_t panel, int) {
    kernels_.pack_panels(rows, DType::kF32, target.k, target.n, target.k, target.type, panel,
                         panel + 1, destination);
  });
}

void WeightLoader::Norm(const float* target, const NormSpec& norm, const PlannedTensor& tensor,
                        int64_t n) {
  Vector(target, {{tensor, n}});
  if (!norm.plus_one) return;
  auto* const out = const_cast<float*>(target);
  for (int64_t i = 0; i < n; ++i) out[i] += 1.0f;
}

void WeightLoader::Vector(const float* target, const std::vector<RowPart>& parts) {
  auto* out = const_cast<float*>(target);
  for (const RowPart& part : parts) {
    ReadFloats(part.tensor, std::array<int64_t, 1>{part.rows}, 0, part.rows, out);
    out += part.rows;
    Packed(part.rows * static_cast<int64_t>(sizeof(float)));
  }
}

void WeightLoader::ReadFloats(const PlannedTensor& tensor, std::span<const int64_t> shape,
                              int64_t begin, int64_t end, float* out) {
  const int64_t cols = shape.size() > 1 ? shape.back() : 1;
  const DType dtype = source_.Require(tensor, shape);
  const int64_t bytes = (end - begin) * cols * DTypeBits(dtype) / 8;
  std::byte* const raw = Staging(bytes);
  source_.ReadRows(tensor, begin, end, cols, {raw, static_cast<size_t>(bytes)});
  Widen(raw, dtype, (end - begin) * cols, out);
}

std::byte* WeightLoader::Staging(int64_t bytes) {
  if (staging_.bytes() < static_cast<size_t>(bytes))
    staging_ = AlignedBuffer(static_cast<size_t>(bytes));
  return staging_.data();
}

void WeightLoader::ReadAcross(const std::vector<RowPart>& parts, int64_t begin, int64_t end,
                              int64_t k, int64_t row_bytes) {
  std::byte* out = Staging((end - begin) * row_bytes);
  int64_t part_begin = 0;
  for (const RowPart& part : parts) {
    const int64_t from = std::max(begin, part_begin);
    const int64_t to = std::min(end, part_begin + part.rows);
    if (from < to) {
      const auto bytes = static_cast<size_t>((to - from) * row_bytes);
      source_.ReadRows(part.tensor, from - part_begin, to - part_begin, k, {out, bytes});
      out += bytes;
    }
    part_begin += part.rows;
  }
}

}  // namespace moesaic
