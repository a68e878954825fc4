// ExpertRunner: the routed experts of one layer for a batch of tokens: asks for the experts
// that the routing names, and computes them as they become available, wherever they are: the blobs
// of host memory and of emulated devices are alike to it.
//
// Owned by the Model; used by its thread only. No allocation after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "core/io/expert_layout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/moe.h"
#include "prefetch/expert_provider.h"
#include "serving/model/expert_sources.h"

namespace moesaic {

// Bytes of a row of n activations, for weights of any type.
int64_t WidestActivationRow(const CpuKernels& kernels, int64_t n);

class ExpertRunner {
 public:
  // All references must outlive the runner.
  ExpertRunner(const ModelConfig& config, const ExpertLayout& layout, ExpertProvider& experts,
               const CpuKernels& kernels, ThreadPool& pool, int64_t max_tokens);

  // experts: [tokens, top_k] ids; weights: [tokens, top_k]. Adds the weighted sum of the experts'
  // outputs to y [tokens, hidden], in slot order whatever the order of arrival. Throws Error when
  // an expert cannot be read; y is then unchanged.
  ExpertStats Run(int64_t layer, const std::byte* x, int64_t x_stride_bytes, int64_t tokens,
                  const int32_t* experts, const float* weights, float* y);

  // What the experts' inputs are multiplied with first, without its data: for its type and shape.
  PackedMatrix Gate() const { return SectionMatrix(layout_.sections[0], nullptr); }

  static int64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                int64_t max_tokens);

 private:
  void Group(int64_t layer, int64_t tokens, const int32_t* experts);
  void Compute(std::span<const PinnedExpert> ready, const std::byte* x, int64_t x_stride_bytes);

  const ModelConfig& config_;
  const ExpertLayout& layout_;
  ExpertProvider& experts_;
  const CpuKernels& kernels_;
  ThreadPool& pool_;
  MoeWorkspace workspace_;
  AlignedBuffer slot_out_;           // [max_tokens * top_k, hidden] f32
  std::vector<int32_t> first_row_;   // [experts + 1] start of each expert's rows in the two below
  std::vector<int32_t> next_row_;    // [experts]
  std::vector<int32_t> token_rows_;  // [max_tokens * top_k]
  std::vector<int32_t> slot_rows_;   // [max_tokens * top_k]
  std::vector<ExpertId> needed_;
  std::vector<PinnedExpert> ready_;
  std::vector<ExpertWork> work_;
};

}  // namespace moesaic
