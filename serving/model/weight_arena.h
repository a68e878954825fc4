// WeightArena: hands out the memory of dense weights in the order in which they lie. With a null
// base it only measures. Matrices of kGguf and kGgufF32 are in the blocks of their tensors where
// these are all of one type, else in blocks of f32; plain floats are of kGgufF32. Those of kFp8
// whose tensors do not stay so (fp8_weights.h) are bf16, and so are those of kBf16Coded that it
// does not fit (coded_weights.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "core/base/units.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/coded_weights.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/gguf_weights.h"

namespace moesaic {

class WeightArena {
 public:
  // Matrices are appended to `matrices`, unless it is null.
  WeightArena(const ModelConfig& config, std::byte* base, std::vector<PackedMatrix>* matrices)
      : config_(config), base_(base), matrices_(matrices) {}

  // Whose tensors those of Matrix are.
  void BeginLayer(int64_t layer) { layer_ = layer; }
  // The blocks of a tensor of this layer that stays fp8 (fp8_weights.h); null of others.
  std::optional<BlockScales> Fp8Blocks(TensorSlot slot, int64_t cols) const {
    if (!config_.tensors.Has(slot) || !StaysFp8(config_, {slot}, layer_, cols)) return std::nullopt;
    return *config_.tensors.At(slot, layer_).Find<BlockScales>();
  }
  // Its rows are those of `slots`, one below the other; none: they are computed.
  PackedMatrix Matrix(WeightType type, int64_t n, int64_t k,
                      std::initializer_list<TensorSlot> slots = {}) {
    return Computed(TypeOf(type, k, slots), n, k, slots);
  }
  // What is in the place of this type.
  WeightType TypeOf(WeightType type, int64_t k, std::initializer_list<TensorSlot> slots) const {
    const bool other = (type == WeightType::kFp8 && !StaysFp8(config_, slots, layer_, k)) ||
                       (type == WeightType::kBf16Coded && !StaysCoded(config_, slots, layer_, k));
    return other ? WeightType::kBf16 : type;
  }
  // Of this type in any case.
  PackedMatrix Computed(WeightType type, int64_t n, int64_t k,
                        std::initializer_list<TensorSlot> slots = {}) {
    PackedMatrix matrix = {nullptr, type, n, k};
    if (IsGguf(type)) {
      matrix.form = GgufFormOfRows(config_, slots, layer_, k);
      if (IsPlain(matrix.form)) matrix.type = WeightType::kGgufF32;
    }
    matrix.data = Take(static_cast<uint64_t>(matrix.bytes()));
    if (matrices_ != nullptr) matrices_->push_back(matrix);
    return matrix;
  }
  const float* Vector(int64_t n) {
    return reinterpret_cast<const float*>(Take(static_cast<uint64_t>(n) * sizeof(float)));
  }
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  const std::byte* Take(uint64_t bytes) {
    const std::byte* at = base_ == nullptr ? nullptr : base_ + used_bytes_;
    used_bytes_ = RoundUp(used_bytes_ + bytes, 64);
    return at;
  }

  const ModelConfig& config_;
  int64_t layer_ = 0;
  std::byte* base_;
  std::vector<PackedMatrix>* matrices_;
  uint64_t used_bytes_ = 0;
};

}  // namespace moesaic
