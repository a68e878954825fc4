// ExpertRunner: the routed experts of one layer for a batch of tokens: asks for the experts
// that the routing names, and computes them as they become available, wherever they are: on the
// device that has them, where devices compute, and on the host the others. (The blobs of an
// emulated device lie in host memory; without operators the host computes them there.)
//
// Where the residual stream is on a device (RunOnto), nothing waits for that device: outputs are
// summed there, and pins end when the caller knows it to be done (Close).
//
// What devices do goes on while the host computes; an expert on a device stays pinned until the
// event behind its products. What a device could not compute the host does.
//
// Owned by the Model; used by its thread only. No allocation after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "core/io/expert_layout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/moe.h"
#include "prefetch/expert_placement.h"
#include "prefetch/expert_provider.h"
#include "serving/model/dense_operator.h"
#include "serving/model/device_operator.h"
#include "serving/model/expert_sources.h"

namespace moesaic {

using DeviceOperators = std::vector<std::unique_ptr<DeviceOperator>>;

// Where experts are and compute: a provider, the threads of its place, and what the provider's
// devices compute with (of every device, or none: the threads compute). No two places share a pool,
// but one place may use that of the caller.
struct ExpertPlace {
  ExpertProvider* experts = nullptr;
  ThreadPool* pool = nullptr;
  DeviceOperators operators;
};
struct ExpertPlaces {
  std::vector<ExpertPlace> places;             // at least one
  const ExpertPlacement* placement = nullptr;  // who is where; null with one place
};

// Bytes of a row of n activations, for weights of any type.
int64_t WidestActivationRow(const CpuKernels& kernels, int64_t n);

class ExpertRunner {
 public:
  // All references must outlive the runner.
  ExpertRunner(const ModelConfig& config, const ExpertLayout& layout, ExpertPlaces places,
               const CpuKernels& kernels, int64_t max_tokens);

  // The rows that experts multiply, twice.
  struct Rows {
    int64_t tokens = 0;
    const float* x = nullptr;  // for devices
    int64_t x_stride = 0;
    const std::byte* activations = nullptr;  // for the host: of the type of Gate()
    int64_t activations_stride_bytes = 0;
  };
  // experts: [tokens, top_k] ids; weights: [tokens, top_k]. Adds the weighted sum of the experts'
  // outputs to y [tokens, hidden], in slot order whatever the order of arrival, the sum on `pool`.
  // Places compute at the same time. Throws Error when an expert cannot be read; y is then
  // unchanged.
  ExpertStats Run(int64_t layer, const Rows& rows, const int32_t* experts, const float* weights,
                  float* y, ThreadPool& pool);

  // The same sum, queued onto the residual stream of `dense`, whose device is the first of the one
  // place; `there` are the rows on it. Close before the next layer, and whenever this has been
  // called, even if it threw (what a device could not do, an expert that cannot be read).
  void RunOnto(DenseOperator& dense, const DeviceBuffer& there, int64_t layer, const Rows& rows,
               const int32_t* experts, const float* weights);
  // Ends the layer that RunOnto began, if any: waits for what the devices still compute.
  ExpertStats Close();

  // What the experts' inputs are multiplied with first, without its data: for its type and shape.
  PackedMatrix Gate() const { return SectionMatrix(layout_.sections[0], nullptr); }

  static int64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                int64_t max_tokens, int places);

 private:
  // One place's part of a layer.
  struct Part {
    ExpertPlace place;
    MoeWorkspace workspace;
    std::vector<ExpertId> needed;
    std::vector<PinnedExpert> ready;
    std::vector<PinnedExpert> of_device;
    std::vector<PinnedExpert> of_host;
    std::vector<ExpertWork> work;
    ExpertStats stats;
  };

  void Group(int64_t layer, int64_t tokens, const int32_t* experts);
  void RunPart(Part& part, const Rows& rows);
  void RunAll(Part& part, const Rows& rows);
  void Hand(Part& part, const Rows& rows);
  bool TakeBatch(Part& part, const Rows& rows, bool may_wait);
  void GiveRows(std::span<const PinnedExpert> experts);
  void StageOthers(int64_t pairs);
  bool AnyComputes(const Part& part, const DeviceOperator* but = nullptr) const;
  void Place(Part& part, const DeviceOperator::Batch& batch);
  void Compute(Part& part, std::span<const PinnedExpert> ready, const Rows& rows);

  const ModelConfig& config_;
  const ExpertLayout& layout_;
  const CpuKernels& kernels_;
  const ExpertGrid grid_;
  const ExpertPlacement* const placement_;
  std::vector<Part> parts_;              // [places]
  std::unique_ptr<ThreadPool> fan_out_;  // a thread for each place; null with one
  AlignedBuffer slot_out_;               // [max_tokens * top_k, hidden] f32
  std::vector<int32_t> first_row_;   // [experts + 1] start of each expert's rows in the two below
  std::vector<int32_t> next_row_;    // [experts]
  std::vector<int32_t> token_rows_;  // [max_tokens * top_k]
  std::vector<int32_t> slot_rows_;   // [max_tokens * top_k]

  // Of a layer whose sum is a device's.
  bool open_ = false;
  DeviceOperator* onto_ = nullptr;  // whose outputs stay; null: none
  std::vector<int32_t> pair_rows_;  // [max_tokens * top_k] row of onto_->out(); -1: in slot_out_
};

}  // namespace moesaic
