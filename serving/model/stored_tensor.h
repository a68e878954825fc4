// StoredTensor: where the tensor of a TensorPlan is in a checkpoint, and how its bytes become the
// rows that the engine wants: the plan's transforms carried out. Used by the TensorSource and the
// experts' ExpertSource of checkpoints, which read the bytes each in its way.
//
// Thread contract: plain functions on the caller's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/tensor.h"
#include "core/config/model_config.h"
#include "core/config/tensor_plan.h"
#include "core/io/checkpoint.h"
#include "core/io/gguf_types.h"

namespace moesaic {

enum class StoredValues {
  kFloats,
  kFp8,         // beside scales of blocks (fp8_weights.h)
  kMxfp4,       // halves of bytes beside a power of two for each 32 (mxfp4_weights.h)
  kPackedInt4,  // numbers of 4 bits beside a scale for each group (packed_int4.h)
  kGguf,        // blocks with scales of their own (kernels/cpu/gguf_blocks.h)
};

// How rows lie in the bytes.
struct RowForm {
  StoredValues values = StoredValues::kFloats;
  int64_t rows = 0;  // that are wanted
  int64_t cols = 0;  // of a vector 1
  int64_t step = 1;  // EveryNthRow
  int64_t first = 0;
  int64_t run = 1;          // EveryNthRow::count
  bool transposed = false;  // the bytes are [cols, stored_rows()]
  int64_t paired_rows = 0;  // RowsInPairs::head_rows; 0: they are in order
  int64_t passed_rows = 0;  // RowsInPairs::passed
  BlockScales blocks = {};  // of fp8
  int64_t group = 0;        // of packed int4: inputs that share a scale
  const GgufType* gguf = nullptr;

  int64_t stored_rows() const { return rows / run * step; }
  // Where the row is that is wanted.
  int64_t StoredRow(int64_t row) const {
    if (paired_rows == 0) return first + row / run * step + row % run;
    const int64_t in_pairs = row % paired_rows - passed_rows;
    if (in_pairs < 0) return row;
    const int64_t half = (paired_rows - passed_rows) / 2;
    return row - in_pairs + (in_pairs < half ? 2 * in_pairs : 2 * (in_pairs - half) + 1);
  }
  size_t pieces() const {
    return values == StoredValues::kFloats || values == StoredValues::kGguf ? 1 : 2;
  }
  // Bytes of a stored row in a piece, unless transposed or fp8; `dtype` is the piece's.
  uint64_t RowBytes(size_t piece, DType dtype) const;
  // Rows are at one distance, of so many stored rows.
  bool Regular() const { return paired_rows == 0 && (run == 1 || run == rows); }
  int64_t distance() const { return run == rows ? 1 : step; }
  // Rows of floats: they need no DecodeRows.
  bool FloatRows() const {
    return values == StoredValues::kFloats && !transposed && paired_rows == 0;
  }
  // Likewise at one distance.
  bool AsTheyLie() const { return FloatRows() && Regular(); }
  bool operator==(const RowForm&) const = default;
};

struct StoredTensor {
  RowForm form;
  // Of all of the stored rows, of this expert where experts are stacked: values, then scales.
  std::array<Extent, 2> extents = {};
  std::array<DType, 2> dtypes = {};
};

// Throws Error as Checkpoint::Require and FindFp8; kUnsupported for transforms that do not go
// together.
StoredTensor FindStored(const Checkpoint& checkpoint, const PlannedTensor& tensor,
                        std::span<const int64_t> shape);
// An f32, f16 or bf16 of an array, as f32.
float FloatAt(const std::byte* values, DType type, int64_t index);

// Throws Error(kUnsupported) unless the tensor can be kept as kW4A16, which it can by config.json.
void RequireW4A16(const StoredTensor& stored, const Checkpoint& checkpoint,
                  const std::string& name);
// Throws Error(kUnsupported) unless the tensor is fp8, which it is by config.json.
void RequireFp8(const RowForm& form, const Checkpoint& checkpoint, const std::string& name);
// The shape for which FindStored finds what is stored under the tensor's name (CHECK that it is).
std::array<int64_t, 2> StoredShape(const Checkpoint& checkpoint, const PlannedTensor& tensor);

// Rows [row_begin, row_begin + count) as f32 into out [count, cols]; dtypes are those of the
// extents, and pieces are the extents from `first_stored` rows on.
void DecodeRows(const RowForm& form, std::span<const std::span<const std::byte>> pieces,
                std::span<const DType> dtypes, int64_t row_begin, int64_t count, float* out,
                int64_t first_stored = 0);

// Whether there are experts and `holds(tensor, cols)` is true of all of their matrices.
template <class Holds>
bool OfAllExperts(const ModelConfig& config, Holds holds) {
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    if (!config.is_sparse(layer)) continue;
    for (int64_t expert = 0; expert < config.num_experts(); ++expert) {
      for (const TensorSlot slot : kExpertSlots) {
        const int64_t cols =
            slot == TensorSlot::kExpertDown ? config.expert_width() : config.hidden_size;
        if (!holds(config.tensors.At(slot, layer, expert), cols)) return false;
      }
    }
  }
  return config.num_experts() > 0;
}

}  // namespace moesaic
