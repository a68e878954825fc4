#include "serving/model/packed_int4.h"

#include "core/base/check.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/stored_tensor.h"

namespace moesaic {
namespace {

bool StaysW4A16(const ModelConfig& config, const PlannedTensor& tensor, int64_t cols) {
  const auto* const packed = tensor.Find<PackedInt4>();
  if (packed == nullptr || config.IsPlainModule(tensor.name)) return false;
  const int64_t group = PackedGroup(*packed, cols);
  return cols % group == 0 && group % kW4A16Group == 0 && tensor.Find<StackOf>() == nullptr &&
         tensor.Find<Transposed>() == nullptr;
}

}  // namespace

bool HasW4A16Experts(const ModelConfig& config) {
  return OfAllExperts(config, [&](const PlannedTensor& tensor, int64_t cols) {
    return StaysW4A16(config, tensor, cols);
  });
}

void DequantisePackedInt4(const std::byte* codes, const std::byte* scales, DType scale_type,
                          int64_t group, int64_t k, float* out) {
  CHECK_EQ(k % group, 0);
  for (int64_t i = 0; i < k; ++i) {
    const int byte = static_cast<int>(codes[i / 2]);
    const int number = (i % 2 == 0 ? byte & 15 : byte >> 4) - 8;
    out[i] = static_cast<float>(number) * FloatAt(scales, scale_type, i / group);
  }
}

}  // namespace moesaic
