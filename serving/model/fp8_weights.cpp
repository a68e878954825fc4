#include "serving/model/fp8_weights.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/base/error.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/stored_tensor.h"

namespace moesaic {
namespace {

int64_t Blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

bool TensorStaysFp8(const ModelConfig& config, const PlannedTensor& tensor, int64_t cols) {
  const auto* const blocks = tensor.Find<BlockScales>();
  return blocks != nullptr && (blocks->cols % kQuantGroup == 0 || blocks->cols >= cols) &&
         tensor.Find<StackOf>() == nullptr && tensor.Find<Transposed>() == nullptr &&
         tensor.Find<RowAsVector>() == nullptr && !config.IsPlainModule(tensor.name);
}

}  // namespace

std::optional<Fp8Tensor> FindFp8(const Checkpoint& checkpoint, const PlannedTensor& tensor,
                                 std::span<const int64_t> shape) {
  const std::string& name = tensor.name;
  const TensorInfo* values = checkpoint.Find(name);
  if (values == nullptr || !values->supported_dtype || values->dtype != DType::kF8E4M3) {
    return std::nullopt;
  }
  const std::string directory = checkpoint.directory().string();
  if (!std::equal(values->shape.begin(), values->shape.end(), shape.begin(), shape.end()) ||
      shape.size() != 2) {
    Fail(ErrorKind::kCorrupt,
         "{}: tensor {} of type F8_E4M3 has shape {}, expected {} (from "
         "config.json)",
         directory, name, ShapeString(values->shape), ShapeString(shape));
  }
  const auto* const blocks = tensor.Find<BlockScales>();
  if (blocks == nullptr) {
    Fail(ErrorKind::kUnsupported,
         "{}: tensor {} has type F8_E4M3, but config.json has no quantization_config with a "
         "weight_block_size: fp8 weights need the scales of their blocks",
         directory, name);
  }
  const std::string scale_name = name + blocks->suffix;
  if (checkpoint.Find(scale_name) == nullptr) {
    Fail(ErrorKind::kNotFound, "{}: tensor {} has type F8_E4M3, but its scales {} are missing",
         directory, name, scale_name);
  }
  const std::array<int64_t, 2> scale_shape = {Blocks(shape[0], blocks->rows),
                                              Blocks(shape[1], blocks->cols)};
  return Fp8Tensor{values, &checkpoint.Require(scale_name, scale_shape), *blocks};
}

bool StaysFp8(const ModelConfig& config, TensorSlot slot, int64_t layer, int64_t cols) {
  return slot != TensorSlot::kEmbedding && slot != TensorSlot::kHead &&
         TensorStaysFp8(config, config.tensors.At(slot, layer), cols);
}

bool HasFp8Experts(const ModelConfig& config) {
  return OfAllExperts(config, [&](const PlannedTensor& tensor, int64_t cols) {
    return TensorStaysFp8(config, tensor, cols);
  });
}

void Fp8GroupScales(const std::byte* scales, DType scale_type, const BlockScales& blocks,
                    int64_t row, int64_t k, float* out) {
  const int64_t first = row / blocks.rows * Blocks(k, blocks.cols);
  for (int64_t group = 0; group < Blocks(k, kQuantGroup); ++group) {
    out[group] = FloatAt(scales, scale_type, first + group * kQuantGroup / blocks.cols);
  }
}

// The exponent has 4 bits and a bias of 7; in the place of an f32's it is 120 too small, which
// holds for denormals as well.
float Fp8E4M3ToF32(uint8_t value) {
  const uint32_t magnitude = value & 0x7fu;
  const uint32_t bits = (value & 0x80u) << 24 | magnitude << 20;
  const float number = __builtin_bit_cast(float, bits) * 0x1p120f;
  return magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN() : number;
}

void DequantiseFp8(const std::byte* values, int64_t row_begin, int64_t rows, int64_t k,
                   const std::byte* scales, DType scale_type, const BlockScales& blocks,
                   float* out) {
  const int64_t columns = Blocks(k, blocks.cols);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t scale_row = (row_begin + row) / blocks.rows * columns;
    for (int64_t column = 0; column < columns; ++column) {
      const float scale = FloatAt(scales, scale_type, scale_row + column);
      const int64_t end = std::min(k, (column + 1) * blocks.cols);
      for (int64_t i = row * k + column * blocks.cols; i < row * k + end; ++i) {
        out[i] = Fp8E4M3ToF32(static_cast<uint8_t>(values[i])) * scale;
      }
    }
  }
}

}  // namespace moesaic
