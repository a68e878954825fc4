#include "serving/model/stored_tensor.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "kernels/cpu/gguf_blocks.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/mxfp4_weights.h"
#include "serving/model/packed_int4.h"

namespace moesaic {
namespace {

constexpr char kBlocksSuffix[] = "_blocks";
constexpr char kScalesSuffix[] = "_scales";

// An expert's part of a stack of `count`.
Extent PartOf(const Extent& whole, const StackOf* stack) {
  if (stack == nullptr) return whole;
  Extent part = whole;
  part.bytes = whole.bytes / static_cast<uint64_t>(stack->count);
  part.offset += part.bytes * static_cast<uint64_t>(stack->index);
  return part;
}

// Before the dimensions of one, or multiplied with its rows.
std::vector<int64_t> Stacked(const StackOf* stack, std::vector<int64_t> shape) {
  if (stack == nullptr) return shape;
  if (stack->one_below) {
    shape.front() *= stack->count;
  } else {
    shape.insert(shape.begin(), stack->count);
  }
  return shape;
}

// `format` is what config.json says of the tensor.
const TensorInfo& RequireBits(const Checkpoint& checkpoint, const std::string& name,
                              const std::vector<int64_t>& shape, DType dtype, const char* format) {
  const std::string directory = checkpoint.directory().string();
  const TensorInfo* const found = checkpoint.Find(name);
  if (found == nullptr) {
    Fail(ErrorKind::kNotFound, "{}: tensor {} is missing (config.json says {})", directory, name,
         format);
  }
  if (!found->supported_dtype || found->dtype != dtype) {
    Fail(ErrorKind::kCorrupt, "{}: tensor {} has type {}, expected {}", directory, name,
         found->dtype_name, dtype == DType::kU8 ? "U8" : "I32");
  }
  if (found->shape != shape) {
    Fail(ErrorKind::kCorrupt, "{}: tensor {} has shape {}, expected {} (from config.json)",
         directory, name, ShapeString(found->shape), ShapeString(shape));
  }
  return *found;
}

// Null unless the tensor is of GGUF's blocks whose values are known.
const TensorInfo* FindGgufBlocks(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* const found = checkpoint.Find(name);
  if (found == nullptr || found->supported_dtype) return nullptr;
  const GgufType* const type = FindGgufType(found->dtype_name);
  return type != nullptr && HasGgufValues(*type) ? found : nullptr;
}

// Throws Error(kUnsupported) unless rows of so many inputs can be in groups of so many.
void RequireGroups(const Checkpoint& checkpoint, const PlannedTensor& tensor, const char* format,
                   int64_t cols, int64_t group) {
  if (cols % group == 0) return;
  Fail(ErrorKind::kUnsupported, "{}: tensor {} has rows of {} values; {} needs a multiple of {}",
       checkpoint.directory().string(), tensor.name, cols, format, group);
}

bool IsPacked(const Checkpoint& checkpoint, const PlannedTensor& tensor) {
  return tensor.Find<PackedInt4>() != nullptr &&
         checkpoint.Find(tensor.name + kPackedSuffix) != nullptr;
}

}  // namespace

float FloatAt(const std::byte* values, DType type, int64_t index) {
  if (type == DType::kF32) return reinterpret_cast<const float*>(values)[index];
  const uint16_t half = reinterpret_cast<const uint16_t*>(values)[index];
  return type == DType::kF16 ? F16ToF32(half) : Bf16ToF32(half);
}

StoredTensor FindStored(const Checkpoint& checkpoint, const PlannedTensor& tensor,
                        std::span<const int64_t> shape) {
  CHECK(shape.size() == 1 || shape.size() == 2);
  StoredTensor stored;
  RowForm& form = stored.form;
  form.rows = shape[0];
  form.cols = shape.size() == 2 ? shape[1] : 1;
  if (const auto* const rows = tensor.Find<EveryNthRow>()) {
    CHECK_EQ(form.rows % rows->count, 0);
    form.step = rows->step;
    form.first = rows->first;
    form.run = rows->count;
  }
  if (const auto* const pairs = tensor.Find<RowsInPairs>()) {
    form.paired_rows = pairs->head_rows;
    form.passed_rows = pairs->passed;
  }
  std::vector<int64_t> whole(shape.begin(), shape.end());
  whole.front() = form.stored_rows();
  if (const std::optional<Fp8Tensor> fp8 = FindFp8(checkpoint, tensor, whole)) {
    form.values = StoredValues::kFp8;
    form.blocks = fp8->blocks;
    stored.extents = {fp8->values->extent, fp8->scales->extent};
    stored.dtypes = {fp8->values->dtype, fp8->scales->dtype};
    return stored;
  }
  const auto* const stack = tensor.Find<StackOf>();
  form.transposed = tensor.Find<Transposed>() != nullptr;
  if (tensor.Find<Mxfp4Blocks>() != nullptr) {
    CHECK(!form.transposed);
    form.values = StoredValues::kMxfp4;
    RequireGroups(checkpoint, tensor, "mxfp4", form.cols, kMxfp4Group);
    const int64_t groups = form.cols / kMxfp4Group;
    const TensorInfo& blocks = RequireBits(
        checkpoint, tensor.name + kBlocksSuffix,
        Stacked(stack, {form.stored_rows(), groups, kMxfp4Group / 2}), DType::kU8, "mxfp4");
    const TensorInfo& scales =
        RequireBits(checkpoint, tensor.name + kScalesSuffix,
                    Stacked(stack, {form.stored_rows(), groups}), DType::kU8, "mxfp4");
    stored.extents = {PartOf(blocks.extent, stack), PartOf(scales.extent, stack)};
    stored.dtypes = {blocks.dtype, scales.dtype};
    return stored;
  }
  if (IsPacked(checkpoint, tensor)) {
    constexpr int64_t kNumbers = 8;  // in an int32
    form.values = StoredValues::kPackedInt4;
    form.group = PackedGroup(*tensor.Find<PackedInt4>(), form.cols);
    RequireGroups(checkpoint, tensor, "packed int4", form.cols, kNumbers);
    RequireGroups(checkpoint, tensor, "its scales", form.cols, form.group);
    const TensorInfo& numbers =
        RequireBits(checkpoint, tensor.name + kPackedSuffix,
                    {form.stored_rows(), form.cols / kNumbers}, DType::kI32, "pack-quantized");
    const TensorInfo& scales =
        checkpoint.Require(tensor.name + kPackedScaleSuffix,
                           std::array<int64_t, 2>{form.stored_rows(), form.cols / form.group});
    stored.extents = {numbers.extent, scales.extent};
    stored.dtypes = {numbers.dtype, scales.dtype};
    return stored;
  }
  std::vector<int64_t> dimensions = {form.stored_rows()};
  if (shape.size() == 2) dimensions.push_back(form.cols);
  if (form.transposed) std::swap(dimensions.front(), dimensions.back());
  if (tensor.Find<RowAsVector>() != nullptr) dimensions.erase(dimensions.begin());
  if (tensor.Find<VectorAsRow>() != nullptr) dimensions.insert(dimensions.begin(), 1);
  if (tensor.Find<RowsOfKernels>() != nullptr) dimensions.insert(dimensions.begin() + 1, 1);
  dimensions = Stacked(stack, std::move(dimensions));
  const TensorInfo* const in_blocks = FindGgufBlocks(checkpoint, tensor.name);
  if (in_blocks != nullptr && in_blocks->shape == dimensions) {
    CHECK(!form.transposed);
    form.values = StoredValues::kGguf;
    form.gguf = FindGgufType(in_blocks->dtype_name);
    stored.extents[0] = PartOf(in_blocks->extent, stack);
    stored.dtypes[0] = in_blocks->dtype;
    return stored;
  }
  const TensorInfo& found = checkpoint.Require(tensor.name, dimensions);
  stored.extents[0] = PartOf(found.extent, stack);
  stored.dtypes[0] = found.dtype;
  return stored;
}

void RequireW4A16(const StoredTensor& stored, const Checkpoint& checkpoint,
                  const std::string& name) {
  const bool packed = stored.form.values == StoredValues::kPackedInt4;
  if (packed && stored.dtypes[1] == DType::kBF16) return;
  Fail(ErrorKind::kUnsupported,
       "{}: tensor {} {}, but quantization_config in config.json says that experts are packed int4 "
       "with bf16 scales; --dtype bfloat16 takes it as it is",
       checkpoint.directory().string(), name,
       packed ? "has scales that are not BF16" : "is not packed");
}

void RequireFp8(const RowForm& form, const Checkpoint& checkpoint, const std::string& name) {
  if (form.values == StoredValues::kFp8) return;
  Fail(
      ErrorKind::kUnsupported,
      "{}: tensor {} is not F8_E4M3, but quantization_config in config.json does not name it among "
      "the modules that are not converted; --dtype bfloat16 takes it as it is",
      checkpoint.directory().string(), name);
}

std::array<int64_t, 2> StoredShape(const Checkpoint& checkpoint, const PlannedTensor& tensor) {
  const bool mxfp4 = tensor.Find<Mxfp4Blocks>() != nullptr;
  const bool packed = IsPacked(checkpoint, tensor);
  const char* const suffix = mxfp4 ? kBlocksSuffix : packed ? kPackedSuffix : "";
  const TensorInfo* const found = checkpoint.Find(tensor.name + suffix);
  CHECK(found != nullptr);
  const auto* const stack = tensor.Find<StackOf>();
  const size_t stacked = stack != nullptr && !stack->one_below ? 1 : 0;
  CHECK_LT(stacked, found->shape.size());
  if (tensor.Find<RowAsVector>() != nullptr) return {1, found->shape.back()};
  if (tensor.Find<VectorAsRow>() != nullptr) return {found->shape.back(), 1};
  if (tensor.Find<RowsOfKernels>() != nullptr) return {found->shape.front(), found->shape.back()};
  int64_t rows = found->shape[stacked];
  if (stack != nullptr && stack->one_below) rows /= stack->count;
  int64_t cols = found->shape.size() > stacked + 1 ? found->shape[stacked + 1] : 1;
  if (mxfp4) cols *= kMxfp4Group;
  if (packed) cols *= 8;
  if (tensor.Find<Transposed>() != nullptr) std::swap(rows, cols);
  if (const auto* const every = tensor.Find<EveryNthRow>()) {
    rows = rows / every->step * every->count;
  }
  return {rows, cols};
}

uint64_t RowForm::RowBytes(size_t piece, DType dtype) const {
  CHECK(!transposed);
  const auto k = static_cast<uint64_t>(cols);
  switch (values) {
    case StoredValues::kFloats:
      return k * static_cast<uint64_t>(DTypeBits(dtype)) / 8;
    case StoredValues::kMxfp4:
      return k / (piece == 0 ? 2 : kMxfp4Group);
    case StoredValues::kPackedInt4:
      return piece == 0
                 ? k / 2
                 : k / static_cast<uint64_t>(group) * static_cast<uint64_t>(DTypeBits(dtype)) / 8;
    case StoredValues::kGguf:
      return k / static_cast<uint64_t>(gguf->block_values) *
             static_cast<uint64_t>(gguf->block_bytes);
    case StoredValues::kFp8:
      break;
  }
  CHECK(false);
}

void DecodeRows(const RowForm& form, std::span<const std::span<const std::byte>> pieces,
                std::span<const DType> dtypes, int64_t row_begin, int64_t count, float* out,
                int64_t first_stored) {
  CHECK_LE(row_begin + count, form.rows);
  const int64_t k = form.cols;
  const auto stored = [&](int64_t row) { return form.StoredRow(row_begin + row) - first_stored; };
  switch (form.values) {
    case StoredValues::kFp8:
      for (int64_t row = 0; row < count; ++row) {
        DequantiseFp8(pieces[0].data() + stored(row) * k, form.StoredRow(row_begin + row), 1, k,
                      pieces[1].data(), dtypes[1], form.blocks, out + row * k);
      }
      return;
    case StoredValues::kMxfp4:
      for (int64_t row = 0; row < count; ++row) {
        const int64_t first = stored(row) * k;
        DequantiseMxfp4(pieces[0].data() + first / 2, pieces[1].data() + first / kMxfp4Group, k,
                        out + row * k);
      }
      return;
    case StoredValues::kPackedInt4: {
      const auto scale_bytes = static_cast<int64_t>(form.RowBytes(1, dtypes[1]));
      for (int64_t row = 0; row < count; ++row) {
        DequantisePackedInt4(pieces[0].data() + stored(row) * k / 2,
                             pieces[1].data() + stored(row) * scale_bytes, dtypes[1], form.group, k,
                             out + row * k);
      }
      return;
    }
    case StoredValues::kGguf: {
      const auto row_bytes = static_cast<size_t>(form.RowBytes(0, dtypes[0]));
      for (int64_t row = 0; row < count; ++row) {
        DequantiseGguf(*form.gguf,
                       pieces[0].subspan(static_cast<size_t>(stored(row)) * row_bytes, row_bytes),
                       {out + row * k, static_cast<size_t>(k)});
      }
      return;
    }
    case StoredValues::kFloats:
      break;
  }
  // A column's neighbours are the rows' values: a line of them is read at once.
  const int64_t row_distance = form.transposed ? 1 : k;
  const int64_t col_distance = form.transposed ? form.stored_rows() : 1;
  for (int64_t col = 0; col < k; ++col) {
    for (int64_t row = 0; row < count; ++row) {
      out[row * k + col] =
          FloatAt(pieces[0].data(), dtypes[0], stored(row) * row_distance + col * col_distance);
    }
  }
}

}  // namespace moesaic
