#include "serving/model/tensor_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/stored_tensor.h"

namespace moesaic {
namespace {

class CheckpointTensorSource : public TensorSource {
 public:
  explicit CheckpointTensorSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  DType Require(const PlannedTensor& tensor, std::span<const int64_t> shape) const override {
    const StoredTensor stored = FindStored(checkpoint_, tensor, shape);
    return stored.form.FloatRows() ? stored.dtypes[0] : DType::kF32;
  }

  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    const std::array<int64_t, 2> shape = StoredShape(checkpoint_, tensor);
    CHECK_EQ(shape[1], row_elements);
    // A vector's values are its rows.
    const StoredTensor stored =
        FindStored(checkpoint_, tensor, std::span(shape).first(shape[1] == 1 ? 1 : 2));
    if (stored.form.values == StoredValues::kFp8) {
      ReadFp8Rows(stored, row_begin, row_end, destination);
    } else if (stored.form.FloatRows()) {
      ReadFloatRows(stored, row_begin, row_end, destination);
    } else {
      ReadDecodedRows(stored, row_begin, row_end, destination);
    }
  }

  void ReadStoredRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                      int64_t row_elements, std::span<std::byte> destination) const override {
    const std::array<int64_t, 2> shape = StoredShape(checkpoint_, tensor);
    CHECK_EQ(shape[1], row_elements);
    ReadPiece(FindStored(checkpoint_, tensor, shape), 0, row_begin, row_end, destination);
  }

  bool ReadFp8Rows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                   int64_t row_elements, std::span<std::byte> codes,
                   std::span<float> scales) const override {
    const std::array<int64_t, 2> shape = StoredShape(checkpoint_, tensor);
    CHECK_EQ(shape[1], row_elements);
    const StoredTensor stored = FindStored(checkpoint_, tensor, shape);
    const RowForm& form = stored.form;
    RequireFp8(form, checkpoint_, tensor.name);
    const auto k = static_cast<size_t>(row_elements);
    const size_t groups = (k + kQuantGroup - 1) / kQuantGroup;
    const auto rows = static_cast<size_t>(row_end - row_begin);
    CHECK_EQ(codes.size(), rows * k);
    CHECK_EQ(scales.size(), rows * groups);
    const auto [first, end] = StoredRange(form, row_begin, row_end);
    const bool in_order = form.paired_rows == 0 && end - first == row_end - row_begin;
    std::vector<std::byte> all(in_order ? 0 : static_cast<size_t>(end - first) * k);
    ReadStored(stored, first, end - first, in_order ? codes : std::span(all));
    std::vector<std::byte> blocks(stored.extents[1].bytes);
    Read(stored.extents[1], blocks);
    for (size_t row = 0; row < rows; ++row) {
      const int64_t at = form.StoredRow(row_begin + static_cast<int64_t>(row));
      Fp8GroupScales(blocks.data(), stored.dtypes[1], form.blocks, at, row_elements,
                     scales.data() + row * groups);
      if (in_order) continue;
      std::memcpy(codes.data() + row * k, all.data() + static_cast<size_t>(at - first) * k, k);
    }
    return true;
  }

  bool ReadW4A16Rows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                     int64_t row_elements, std::span<std::byte> codes,
                     std::vector<uint16_t>& scales) const override {
    const std::array<int64_t, 2> shape = StoredShape(checkpoint_, tensor);
    CHECK_EQ(shape[1], row_elements);
    const StoredTensor stored = FindStored(checkpoint_, tensor, shape);
    RequireW4A16(stored, checkpoint_, tensor.name);
    ReadPiece(stored, 0, row_begin, row_end, codes);
    const uint64_t scale_bytes = stored.form.RowBytes(1, stored.dtypes[1]);
    scales.resize(static_cast<size_t>(row_end - row_begin) * scale_bytes / sizeof(uint16_t));
    ReadPiece(stored, 1, row_begin, row_end, std::as_writable_bytes(std::span(scales)));
    return true;
  }

  bool ReadMxfp4Rows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                     int64_t row_elements, std::span<std::byte> codes,
                     std::span<std::byte> exponents) const override {
    const std::array<int64_t, 2> shape = StoredShape(checkpoint_, tensor);
    CHECK_EQ(shape[1], row_elements);
    const StoredTensor stored = FindStored(checkpoint_, tensor, shape);
    ReadPiece(stored, 0, row_begin, row_end, codes);
    ReadPiece(stored, 1, row_begin, row_end, exponents);
    return true;
  }

  uint64_t Fingerprint() const override { return checkpoint_.Fingerprint(); }

 private:
  void Read(const Extent& extent, std::span<std::byte> destination) const {
    TensorInfo bytes;
    bytes.extent = extent;
    checkpoint_.Read(bytes, destination);
  }

  // Rows of a piece, as bits.
  void ReadPiece(const StoredTensor& stored, size_t piece, int64_t row_begin, int64_t row_end,
                 std::span<std::byte> destination) const {
    const RowForm& form = stored.form;
    const uint64_t row_bytes = form.RowBytes(piece, stored.dtypes[piece]);
    CHECK_EQ(destination.size(), static_cast<size_t>(row_end - row_begin) * row_bytes);
    const auto [first, end] = StoredRange(form, row_begin, row_end);
    Extent part = stored.extents[piece];
    part.offset += static_cast<uint64_t>(first) * row_bytes;
    part.bytes = static_cast<uint64_t>(end - first) * row_bytes;
    if (form.paired_rows == 0 && end - first == row_end - row_begin) {
      Read(part, destination);
      return;
    }
    std::vector<std::byte> all(part.bytes);
    Read(part, all);
    for (int64_t row = row_begin; row < row_end; ++row) {
      std::memcpy(destination.data() + static_cast<size_t>(row - row_begin) * row_bytes,
                  all.data() + static_cast<size_t>(form.StoredRow(row) - first) * row_bytes,
                  row_bytes);
    }
  }

  // `rows` stored rows from `first` on.
  void ReadStored(const StoredTensor& stored, int64_t first, int64_t rows,
                  std::span<std::byte> destination) const {
    const uint64_t row_bytes = static_cast<uint64_t>(stored.form.cols) *
                               static_cast<uint64_t>(DTypeBits(stored.dtypes[0])) / 8;
    const Extent& whole = stored.extents[0];
    const Extent part = {whole.file, whole.offset + static_cast<uint64_t>(first) * row_bytes,
                         static_cast<uint64_t>(rows) * row_bytes};
    CHECK_LE(part.offset + part.bytes, whole.offset + whole.bytes);
    Read(part, destination);
  }

  void ReadFloatRows(const StoredTensor& stored, int64_t row_begin, int64_t row_end,
                     std::span<std::byte> destination) const {
    const RowForm& form = stored.form;
    const int64_t first = form.StoredRow(row_begin);
    const int64_t count = row_end - row_begin;
    const int64_t between = form.StoredRow(row_end - 1) - first + 1;
    if (between == count) {
      ReadStored(stored, first, count, destination);
      return;
    }
    const size_t row_bytes = destination.size() / static_cast<size_t>(count);
    std::vector<std::byte> all(static_cast<size_t>(between) * row_bytes);
    ReadStored(stored, first, between, all);
    for (int64_t row = 0; row < count; ++row) {
      const auto at = static_cast<size_t>(form.StoredRow(row_begin + row) - first);
      std::memcpy(destination.data() + static_cast<size_t>(row) * row_bytes,
                  all.data() + at * row_bytes, row_bytes);
    }
  }

  // The stored rows among which rows [row_begin, row_end) are, as [first, end).
  static std::pair<int64_t, int64_t> StoredRange(const RowForm& form, int64_t row_begin,
                                                 int64_t row_end) {
    int64_t first = form.StoredRow(row_begin);
    int64_t last = first;
    for (int64_t row = row_begin + 1; row < row_end; ++row) {
      first = std::min(first, form.StoredRow(row));
      last = std::max(last, form.StoredRow(row));
    }
    return {first, last + 1};
  }

  // Neighbours are read into the last quarter of the destination and widened from its start on.
  void ReadFp8Rows(const StoredTensor& stored, int64_t row_begin, int64_t row_end,
                   std::span<std::byte> destination) const {
    const RowForm& form = stored.form;
    const auto [first, end] = StoredRange(form, row_begin, row_end);
    const int64_t count = row_end - row_begin;
    auto* const out = reinterpret_cast<float*>(destination.data());
    std::vector<std::byte> scales(stored.extents[1].bytes);
    Read(stored.extents[1], scales);
    if (form.paired_rows == 0 && end - first == count) {
      const std::span<std::byte> values = destination.last(destination.size() / sizeof(float));
      ReadStored(stored, first, count, values);
      DequantiseFp8(values.data(), first, count, form.cols, scales.data(), stored.dtypes[1],
                    form.blocks, out);
      return;
    }
    std::vector<std::byte> values(static_cast<size_t>((end - first) * form.cols));
    ReadStored(stored, first, end - first, values);
    const std::array<std::span<const std::byte>, 2> pieces = {values, scales};
    DecodeRows(form, pieces, stored.dtypes, row_begin, count, out, first);
  }

  void ReadDecodedRows(const StoredTensor& stored, int64_t row_begin, int64_t row_end,
                       std::span<std::byte> destination) const {
    // Of a transposed matrix all is read.
    const RowForm& form = stored.form;
    const auto [first, end] =
        form.transposed ? std::pair<int64_t, int64_t>() : StoredRange(form, row_begin, row_end);
    std::array<std::vector<std::byte>, 2> bytes;
    std::array<std::span<const std::byte>, 2> pieces;
    for (size_t i = 0; i < form.pieces(); ++i) {
      Extent part = stored.extents[i];
      if (!form.transposed) {
        const uint64_t row_bytes = form.RowBytes(i, stored.dtypes[i]);
        part.offset += static_cast<uint64_t>(first) * row_bytes;
        part.bytes = static_cast<uint64_t>(end - first) * row_bytes;
      }
      bytes[i].resize(part.bytes);
      Read(part, bytes[i]);
      pieces[i] = bytes[i];
    }
    DecodeRows(form, pieces, stored.dtypes, row_begin, row_end - row_begin,
               reinterpret_cast<float*>(destination.data()), first);
  }

  const Checkpoint& checkpoint_;
};

// splitmix64 (Steele, Lea, Flood 2014): a counter-based generator, so that any row can be made
// alone.
uint64_t SplitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class DummyTensorSource : public TensorSource {
 public:
  explicit DummyTensorSource(uint64_t seed) : seed_(seed) {}

  DType Require(const PlannedTensor&, std::span<const int64_t>) const override {
    return DType::kBF16;
  }

  void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                int64_t row_elements, std::span<std::byte> destination) const override {
    const std::string& name = tensor.name;
    auto* out = reinterpret_cast<uint16_t*>(destination.data());
    const int64_t count = (row_end - row_begin) * row_elements;
    CHECK_EQ(destination.size(), static_cast<size_t>(count) * 2);
    if (name.find("norm") != std::string::npos) {
      for (int64_t i = 0; i < count; ++i) out[i] = F32ToBf16(1.0f);
      return;
    }
    uint64_t base = seed_;
    for (const char c : name) base = SplitMix(base ^ static_cast<unsigned char>(c));
    // Tensors that share a name.
    if (const auto* const stack = tensor.Find<StackOf>()) {
      base = SplitMix(base ^ static_cast<uint64_t>(stack->index));
    }
    if (const auto* const rows = tensor.Find<EveryNthRow>()) {
      base = SplitMix(base ^ static_cast<uint64_t>(rows->first));
    }
    const float scale = std::sqrt(3.0f / static_cast<float>(row_elements)) / 32768.0f;
    // Four values from each draw; element e of the tensor depends on e alone.
    const auto first = static_cast<uint64_t>(row_begin * row_elements);
    const uint64_t end = first + static_cast<uint64_t>(count);
    for (uint64_t element = first; element < end;) {
      uint64_t draw = SplitMix(base + element / 4) >> (16 * (element % 4));
      for (const uint64_t next = std::min(end, (element / 4 + 1) * 4); element < next; ++element) {
        *out++ = F32ToBf16(static_cast<float>(static_cast<int16_t>(draw)) * scale);
        draw >>= 16;
      }
    }
  }

  uint64_t Fingerprint() const override { return SplitMix(seed_ ^ 0x64756d6d79ull); }

 private:
  uint64_t seed_;
};

}  // namespace

void TensorSource::ReadStoredRows(const PlannedTensor&, int64_t, int64_t, int64_t,
                                  std::span<std::byte>) const {
  CHECK(false);
}

bool TensorSource::ReadW4A16Rows(const PlannedTensor&, int64_t, int64_t, int64_t,
                                 std::span<std::byte>, std::vector<uint16_t>&) const {
  return false;
}

bool TensorSource::ReadMxfp4Rows(const PlannedTensor&, int64_t, int64_t, int64_t,
                                 std::span<std::byte>, std::span<std::byte>) const {
  return false;
}

bool TensorSource::ReadFp8Rows(const PlannedTensor&, int64_t, int64_t, int64_t,
                               std::span<std::byte>, std::span<float>) const {
  return false;
}

std::unique_ptr<TensorSource> MakeCheckpointTensorSource(const Checkpoint& checkpoint) {
  return std::make_unique<CheckpointTensorSource>(checkpoint);
}

std::unique_ptr<TensorSource> MakeDummyTensorSource(uint64_t seed) {
  return std::make_unique<DummyTensorSource>(seed);
}

}  // namespace moesaic
