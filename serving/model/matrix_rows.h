// MatrixRows: rows of several tensors, one below the other, that are multiplied with the same
// input. They are one matrix where all lie alike, else one for each run of those that do: a GGUF
// file has queries, keys and values in types of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/check.h"
#include "core/config/tensor_plan.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// Of a tensor.
struct SlotRows {
  TensorSlot slot;
  int64_t rows;
};

struct MatrixRows {
  std::vector<PackedMatrix> matrices;

  int64_t n() const {
    int64_t rows = 0;
    for (const PackedMatrix& matrix : matrices) rows += matrix.n;
    return rows;
  }
  // Of rows that lie alike (CHECK): all but those of GGUF files do.
  const PackedMatrix& whole() const {
    CHECK_EQ(std::ssize(matrices), 1);
    return matrices.front();
  }
};

inline std::vector<const PackedMatrix*> PointersTo(const MatrixRows& rows) {
  std::vector<const PackedMatrix*> pointers;
  pointers.reserve(rows.matrices.size());
  for (const PackedMatrix& matrix : rows.matrices) pointers.push_back(&matrix);
  return pointers;
}

}  // namespace moesaic
