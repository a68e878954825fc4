// TensorSource: where a model's tensors come from: a checkpoint, or random values made from
// config.json alone (`--load-format dummy`). Tensors are those of the model's TensorPlan, whose
// transforms it carries out.
//
// Thread contract: const methods are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/tensor.h"
#include "core/config/tensor_plan.h"
#include "core/io/checkpoint.h"

namespace moesaic {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Checks that the tensor exists with this shape (rows may be 0-rank: {n}) and returns its dtype
  // (f32, f16 or bf16). Throws Error naming the tensor and what was expected.
  virtual DType Require(const PlannedTensor& tensor, std::span<const int64_t> shape) const = 0;
  // Rows [row_begin, row_end) of a tensor [rows, ...] whose row has `row_elements` elements. The
  // destination has exactly that many elements of the dtype that Require returned.
  virtual void ReadRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                        int64_t row_elements, std::span<std::byte> destination) const = 0;
  // The same rows as the file has them, in GGUF's blocks (of floats, plain floats). Only of sources
  // and tensors that have them so (CHECK).
  virtual void ReadStoredRows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                              int64_t row_elements, std::span<std::byte> destination) const;
  // The same rows of a tensor that stays fp8 (fp8_weights.h): codes [rows, row_elements], scales
  // [rows, ceil(row_elements / kQuantGroup)]. False: the source has floats alone, which are to be
  // rounded. Throws Error of a tensor that the checkpoint has otherwise than config.json says.
  virtual bool ReadFp8Rows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                           int64_t row_elements, std::span<std::byte> codes,
                           std::span<float> scales) const;
  // The same of packed int4 that stays (packed_int4.h): codes [rows, row_elements / 2], scales
  // [rows, groups of the checkpoint] of bf16.
  virtual bool ReadW4A16Rows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                             int64_t row_elements, std::span<std::byte> codes,
                             std::vector<uint16_t>& scales) const;
  // The same of MXFP4 (mxfp4_weights.h): codes [rows, row_elements / 2], exponents
  // [rows, row_elements / 32].
  virtual bool ReadMxfp4Rows(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                             int64_t row_elements, std::span<std::byte> codes,
                             std::span<std::byte> exponents) const;
  // Identifies the content; an expert store is made for one fingerprint.
  virtual uint64_t Fingerprint() const = 0;
};

// `checkpoint` must outlive the source. ReadRows gives block-scaled fp8 tensors and packed
// int4 as f32.
std::unique_ptr<TensorSource> MakeCheckpointTensorSource(const Checkpoint& checkpoint);

// bf16 values, uniform with the standard deviation 1 / sqrt(row_elements) (norm weights are 1),
// drawn from `seed` and the tensor's name: the same in every process.
std::unique_ptr<TensorSource> MakeDummyTensorSource(uint64_t seed);

}  // namespace moesaic
