// WeightLoader: reads tensors of a checkpoint and packs them where dense weights lie.
//
// Used by one thread, and the pool that it is given, while weights are loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/norm_spec.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/load_progress.h"
#include "serving/model/matrix_rows.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

// Rows of a packed matrix may come from several tensors, one below the other.
struct RowPart {
  PlannedTensor tensor;
  int64_t rows = 0;
};

// Throws Error from the source (missing tensor, wrong shape, I/O).
class WeightLoader {
 public:
  WeightLoader(const TensorSource& source, const CpuKernels& kernels, ThreadPool& pool)
      : source_(source), kernels_(kernels), pool_(pool) {}

  // From now on matrices are not written: of those of kBf16Coded the names of tensors are added to
  // `uncoded` whose rows are in panels that do not fit.
  void OnlyCode(std::set<std::string>* uncoded) { uncoded_ = uncoded; }

  // Is told from now on what has been packed; null: nobody is.
  void Report(LoadProgress* progress) { progress_ = progress; }

  void Matrix(const PackedMatrix& target, const std::vector<RowPart>& parts);
  void Matrix(const PackedMatrix& target, const PlannedTensor& tensor) {
    Matrix(target, {{tensor, target.n}});
  }
  // Of a layer, the rows that the target was laid out for.
  void Matrices(const MatrixRows& target, const std::vector<SlotRows>& rows, const TensorPlan& plan,
                int64_t layer);
  // Rows [begin, end) of a matrix of this shape, as f32.
  void Rows(const PlannedTensor& tensor, int64_t n, int64_t k, int64_t begin, int64_t end,
            float* out);
  // The same of a tensor that stays fp8, as TensorSource::ReadFp8Rows; false: the source has
  // floats.
  bool Fp8Rows(const PlannedTensor& tensor, int64_t n, int64_t k, int64_t begin, int64_t end,
               std::byte* codes, float* scales);
  // Packs rows [target.n, target.k] that are in memory.
  void Pack(const PackedMatrix& target, const float* rows);
  // The same of fp8: codes [target.n, target.k], scales [target.n, groups].
  void PackFp8(const PackedMatrix& target, const std::byte* codes, const float* scales);
  void Vector(const float* target, const std::vector<RowPart>& parts);
  // A vector of n, of a norm like this.
  void Norm(const float* target, const NormSpec& norm, const PlannedTensor& tensor, int64_t n);

 private:
  void Blocks(const PackedMatrix& target, const std::vector<RowPart>& parts);
  // Returns false, with nothing done, where the source has floats alone.
  bool Fp8(const PackedMatrix& target, const std::vector<RowPart>& parts);
  void Packed(int64_t bytes) {
    if (progress_ != nullptr) progress_->Read(static_cast<uint64_t>(bytes));
  }
  std::byte* Staging(int64_t bytes);
  void ReadFloats(const PlannedTensor& tensor, std::span<const int64_t> shape, int64_t begin,
                  int64_t end, float* out);
  void ReadAcross(const std::vector<RowPart>& parts, int64_t begin, int64_t end, int64_t k,
                  int64_t row_bytes);

  const TensorSource& source_;
  const CpuKernels& kernels_;
  ThreadPool& pool_;
  AlignedBuffer staging_;
  std::set<std::string>* uncoded_ = nullptr;
  LoadProgress* progress_ = nullptr;
};

}  // namespace moesaic
