#include "serving/model/expert_runner.h"

#include <algorithm>
namespace moesaic {

int64_t WidestActivationRow(const CpuKernels& kernels, int64_t n) {
  return std::max(ActivationRowBytes(ActivationTypeOf(kernels.numerics, WeightType::kBf16), n),
                  ActivationRowBytes(ActivationType::kInt8, n));
}

ExpertRunner::ExpertRunner(const ModelConfig& config, const ExpertLayout& layout,
                           ExpertProvider& experts, const CpuKernels& kernels, ThreadPool& pool,
                           int64_t max_tokens)
    : config_(config), layout_(layout), experts_(experts), kernels_(kernels), pool_(pool) {
  const int64_t rows = max_tokens * config.top_k;
  workspace_.Reserve(ActivationTypeOf(kernels.numerics, Gate().type), rows,
                     config.moe_intermediate_size);
  slot_out_ = AlignedBuffer(static_cast<size_t>(rows * config.hidden_size) * sizeof(float));
  first_row_.resize(static_cast<size_t>(config.num_experts) + 1);
  next_row_.resize(static_cast<size_t>(config.num_experts));
  token_rows_.resize(static_cast<size_t>(rows));
  slot_rows_.resize(static_cast<size_t>(rows));
  needed_.reserve(static_cast<size_t>(config.num_experts));
  ready_.reserve(static_cast<size_t>(config.num_experts));
  work_.reserve(static_cast<size_t>(config.num_experts));
}

int64_t ExpertRunner::WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                     int64_t max_tokens) {
  const int64_t rows = max_tokens * config.top_k;
  return rows * (config.hidden_size * static_cast<int64_t>(sizeof(float)) +
                 WidestActivationRow(kernels, config.moe_intermediate_size) +
                 2 * static_cast<int64_t>(sizeof(int32_t)));
}

// Counting sort of the (token, slot) pairs by expert; within an expert they stay in token order.
void ExpertRunner::Group(int64_t layer, int64_t tokens, const int32_t* experts) {
  const int64_t pairs = tokens * config_.top_k;
  std::fill(first_row_.begin(), first_row_.end(), 0);
  for (int64_t p = 0; p < pairs; ++p) ++first_row_[static_cast<size_t>(experts[p]) + 1];
  needed_.clear();
  for (int64_t e = 0; e < config_.num_experts; ++e) {
    if (first_row_[static_cast<size_t>(e) + 1] > 0) {
      ExpertId id;
      id.layer = static_cast<uint16_t>(layer);
      id.index = static_cast<uint16_t>(e);
      needed_.push_back(id);
    }
    first_row_[static_cast<size_t>(e) + 1] += first_row_[static_cast<size_t>(e)];
    next_row_[static_cast<size_t>(e)] = first_row_[static_cast<size_t>(e)];
  }
  for (int64_t p = 0; p < pairs; ++p) {
    const auto row = static_cast<size_t>(next_row_[static_cast<size_t>(experts[p])]++);
    token_rows_[row] = static_cast<int32_t>(p / config_.top_k);
    slot_rows_[row] = static_cast<int32_t>(p);
  }
}

void ExpertRunner::Compute(std::span<const PinnedExpert> ready, const std::byte* x,
                           int64_t x_stride_bytes) {
  work_.clear();
  for (const PinnedExpert& expert : ready) {
    const auto first = static_cast<size_t>(first_row_[expert.id.index]);
    const auto last = static_cast<size_t>(first_row_[expert.id.index + 1u]);
    ExpertWork work;
    work.gate = SectionMatrix(layout_.sections[0], expert.blob);
    work.up = SectionMatrix(layout_.sections[1], expert.blob);
    work.down = SectionMatrix(layout_.sections[2], expert.blob);
    work.token_rows = token_rows_.data() + first;
    work.slot_rows = slot_rows_.data() + first;
    work.count = static_cast<int64_t>(last - first);
    work_.push_back(work);
  }
  RunExperts(pool_, kernels_, x, x_stride_bytes, work_, slot_out_.as<float>(), workspace_);
}

ExpertStats ExpertRunner::Run(int64_t layer, const std::byte* x, int64_t x_stride_bytes,
                              int64_t tokens, const int32_t* experts, const float* weights,
                              float* y) {
  Group(layer, tokens, experts);
  experts_.BeginLayer(needed_, tokens * config_.top_k);
  try {
    for (;;) {
      ready_.clear();
      if (!experts_.NextReady(ready_)) break;
      Compute(ready_, x, x_stride_bytes);
      for (const PinnedExpert& expert : ready_) experts_.Release(expert);
    }
  } catch (...) {
    experts_.EndLayer();
    throw;
  }
  const ExpertStats stats = experts_.EndLayer();
  CombineSlots(pool_, kernels_, slot_out_.as<float>(), weights, tokens, config_.top_k,
               config_.hidden_size, y);
  return stats;
}

}  // namespace moesaic
