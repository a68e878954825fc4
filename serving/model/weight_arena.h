// WeightArena: hands out the memory of dense weights in the order in which they lie. With a null
// base it only measures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/units.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

class WeightArena {
 public:
  // Matrices are appended to `matrices`, unless it is null.
  WeightArena(std::byte* base, std::vector<PackedMatrix>* matrices)
      : base_(base), matrices_(matrices) {}

  PackedMatrix Matrix(WeightType type, int64_t n, int64_t k) {
    const PackedMatrix matrix = {Take(static_cast<uint64_t>(PackedMatrix::Bytes(type, n, k))), type,
                                 n, k};
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

  std::byte* base_;
  std::vector<PackedMatrix>* matrices_;
  uint64_t used_bytes_ = 0;
};

}  // namespace moesaic
