// WeightArena: hands out the memory of dense weights in the order in which they lie. With a null
// base it only measures. Matrices of kGguf and kGgufF32 are in the blocks of their tensors; plain
// floats are of kGgufF32. Those of kFp8 whose tensors do not stay so (fp8_weights.h) are bf16, and
// so are those of kBf16Coded that it does not fit (coded_weights.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/units.h"
#include "core/config/model_config.h"
#include "kernels/cpu/gguf_blocks.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/coded_weights.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/gguf_weights.h"
#include "serving/model/matrix_rows.h"

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
    if (!config_.tensors.Has(slot) || !StaysFp8(config_, slot, layer_, cols)) return std::nullopt;
    return *config_.tensors.At(slot, layer_).Find<BlockScales>();
  }
  // Of a tensor.
  PackedMatrix Matrix(WeightType type, int64_t n, int64_t k, TensorSlot slot) {
    return Placed(ShapeOf(TypeOf(type, k, slot), n, k, slot));
  }
  // Rows of several tensors, one below the other.
  MatrixRows Rows(WeightType type, int64_t k, const std::vector<SlotRows>& parts) {
    const bool stays = std::all_of(parts.begin(), parts.end(), [&](const SlotRows& part) {
      return TypeOf(type, k, part.slot) == type;
    });
    MatrixRows rows;
    for (const SlotRows& part : parts) {
      const PackedMatrix shape = ShapeOf(stays ? type : WeightType::kBf16, part.rows, k, part.slot);
      if (!rows.matrices.empty() && rows.matrices.back().type == shape.type &&
          rows.matrices.back().form == shape.form) {
        rows.matrices.back().n += shape.n;
      } else {
        rows.matrices.push_back(shape);
      }
    }
    std::vector<PackedMatrix*> all;
    all.reserve(rows.matrices.size());
    for (PackedMatrix& matrix : rows.matrices) {
      matrix = Placed(matrix);
      all.push_back(&matrix);
    }
    TakeSameActivations(all);
    return rows;
  }
  // Whether a tensor of this layer stays in blocks of a GGUF file.
  bool KeepsBlocks(WeightType type, int64_t k, TensorSlot slot) const {
    return IsGguf(type) && config_.tensors.Has(slot) && !IsPlain(ShapeOf(type, 1, k, slot).form);
  }
  // Of this type in any case; its values are computed from tensors, in GGUF files as f32.
  PackedMatrix Computed(WeightType type, int64_t n, int64_t k) {
    return Placed(ShapeOf(type, n, k, std::nullopt));
  }
  // What is in the place of this type.
  WeightType TypeOf(WeightType type, int64_t k, TensorSlot slot) const {
    const bool other = (type == WeightType::kFp8 && !StaysFp8(config_, slot, layer_, k)) ||
                       (type == WeightType::kBf16Coded && !StaysCoded(config_, slot, layer_, k));
    return other ? WeightType::kBf16 : type;
  }
  const float* Vector(int64_t n) {
    return reinterpret_cast<const float*>(Take(static_cast<uint64_t>(n) * sizeof(float)));
  }
  uint64_t used_bytes() const { return used_bytes_; }

 private:
  PackedMatrix ShapeOf(WeightType type, int64_t n, int64_t k,
                       std::optional<TensorSlot> slot) const {
    PackedMatrix matrix = {nullptr, type, n, k};
    if (!IsGguf(type)) return matrix;
    matrix.form =
        slot ? GgufFormOrF32(config_, config_.tensors.At(*slot, layer_), k) : GgufF32Form(k);
    if (IsPlain(matrix.form)) matrix.type = WeightType::kGgufF32;
    return matrix;
  }
  PackedMatrix Placed(PackedMatrix matrix) {
    matrix.data = Take(static_cast<uint64_t>(matrix.bytes()));
    if (matrices_ != nullptr) matrices_->push_back(matrix);
    return matrix;
  }
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
