// ExpertRunner: the routed experts of one layer for a batch of tokens: asks for the experts
// that the routing names, and computes them as they become available, wherever they are: on the
// device that has them, where devices compute, and on the host the others. (The blobs of an
// emulated device lie in host memory; without operators the host computes them there.)
//
// Where the residual stream is on a device, nothing waits for that device: outputs stay there or
// are sent there, and pins end when the caller knows it to be done (Close).
//
// What devices do goes on while the host computes; an expert on a device stays pinned until the
// event behind its products. What a device could not compute the host does.
//
// Deferral (KTransformers: O_k = I_k + S_k(I_k) + R_{k-1}^def(I_{k-1}) + R_k^imm(I_k)): the caller
// says which (token, slot) pairs of a layer are added one layer later. That changes the sum, and
// nothing but the routing decides it. What it is good for: an expert that only deferred pairs want
// and that is missing is fetched while the next layer attends, and computed there.
//
// Long prompts: when a layer wants nearly all experts, so will the next, whose experts are fetched
// as a whole while this one computes.
//
// Owned by the Model; used by its thread only. No allocation after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "core/io/expert_layout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/moe.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/expert_provider.h"
#include "serving/model/device_operator.h"
#include "serving/model/expert_rows.h"
#include "serving/model/expert_sources.h"
#include "serving/model/host_rows.h"
#include "serving/model/weights.h"

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

// Where a block of rows is in a layer, of a pass that runs layer after layer.
struct LayerBlock {
  bool first = false;
  bool last = false;
};

// When the blocks of a layer want such a share of its experts, the later layers are fetched as a
// whole, in the order of need, while the link has nothing else to do. With 0.75 prompts that use
// two thirds of the experts did not hide reading behind computing (docs/experiments/prefill.md).
inline constexpr double kWholeLayerOfBlocks = 0.5;

class ExpertRunner {
 public:
  // All references must outlive the runner. layers: the dense weights, for the biases of experts
  // that have some.
  ExpertRunner(const ModelConfig& config, const ExpertLayout& layout, ExpertPlaces places,
               const CpuKernels& kernels, int64_t max_tokens, bool may_defer = false,
               std::span<const LayerWeights> layers = {});

  // A pass begins. What an earlier one that failed has left behind is forgotten.
  void BeginPass();
  // The next Run is of a block of such a pass: the layer's experts stay for its other blocks, and
  // the later layers' are fetched, as far as there is room, and stay, until EndBlocks. Other passes
  // may run between blocks.
  void BeginBlock(const LayerBlock& block) { block_ = block; }
  void EndBlocks();

  // The layer that runs next will want these experts, [rows, top_k], while its mixer has not run
  // yet: what is missing of them starts to load. Nothing depends on it but time. Not where the
  // residual stream is a device's.
  void Announce(int64_t layer, std::span<const int32_t> experts);
  // Computes the experts of the rows, places at the same time; on the host's part of it, `pool`
  // makes the rows what products want. outputs() are then to be added to the residual stream. Where
  // that is a device's, Close before the next layer, and after an error. Throws Error when an
  // expert cannot be read, or the device that has the residual stream could not compute what it was
  // to.
  ExpertStats Run(int64_t layer, const ExpertInputs& inputs, const RowExperts& experts,
                  ThreadPool& pool);
  // Until the next Run.
  const ExpertOutputs& outputs() const { return outputs_; }
  // Computes what the layer before deferred and nobody has computed yet. Called once in each layer,
  // after its Run if it has experts, with the same rows.
  ExpertStats RunDeferred();
  // What the layer before deferred, of all rows.
  const ExpertOutputs& deferred() const { return deferred_; }
  // Ends the layer that Run began where the residual stream is a device's, if any: waits for what
  // the devices still compute.
  ExpertStats Close();

  // Whether Run wants rows on the host where the residual stream is a device's: it does not where
  // that device computes everything.
  bool NeedsHostRows() const;
  // Whether, since the last call, Run has thrown because the device that has the residual stream
  // can compute no more. Another pass may succeed.
  bool TakeFailure() { return std::exchange(failed_, false); }
  // What computes where the residual stream is a device's; null: no device computes.
  const DeviceOperator* first_device() const {
    const DeviceOperators& operators = parts_.front().place.operators;
    return operators.empty() ? nullptr : operators.front().get();
  }

  // What the experts' inputs are multiplied with first, without its data: for its type and shape.
  PackedMatrix Gate() const { return SectionMatrix(layout_.sections[0], nullptr, 0); }

  static int64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                int64_t max_tokens, int places, bool may_defer = false);

 private:
  static constexpr size_t kRowsOfCopy = 16;  // that are copied by one

  // The rows that experts multiply, twice.
  struct Rows {
    int64_t tokens = 0;
    const float* x = nullptr;  // for devices
    int64_t x_stride = 0;
    const std::byte* activations = nullptr;  // for the host: of the type of Gate()
    int64_t activations_stride_bytes = 0;
  };

  // A layer's (token, slot) pairs by expert, and what experts made of them. There are two where
  // pairs are deferred: of the layer that runs and of the one before.
  struct LayerRows {
    AlignedBuffer slot_out;           // [max_tokens * top_k, hidden] f32
    std::vector<int32_t> first_row;   // [experts + 1] start of each expert's rows in the next two
    std::vector<int32_t> token_rows;  // [max_tokens * top_k]
    std::vector<int32_t> slot_rows;   // [max_tokens * top_k]
    // What is deferred; without, tokens is 0.
    int64_t tokens = 0;
    std::vector<float> weights;               // [max_tokens * top_k]
    std::vector<uint8_t> deferred;            // [max_tokens * top_k]
    std::vector<std::vector<ExpertId>> late;  // [places] not computed yet
    AlignedBuffer x;                          // [max_tokens, row of f32], those that `late` wants
    AlignedBuffer activations;                // [max_tokens, widest row], likewise
  };

  // One place's part of a layer.
  struct Part {
    ExpertPlace place;
    MoeWorkspace workspace;
    std::vector<ExpertId> needed;
    std::vector<ExpertId> expected;   // by later layers
    std::vector<ExpertId> of_blocks;  // expected by what a pass that runs in blocks has left
    bool expects = false;             // something
    bool tells = false;               // the provider is to be told
    bool open = false;                // RunOnto has begun its layer
    std::vector<PinnedExpert> ready;
    std::vector<PinnedExpert> of_device;
    std::vector<PinnedExpert> of_host;
    std::vector<ExpertWork> work;
    ExpertStats stats;
  };

  int PlaceOf(ExpertId id) const;
  void Group(int64_t layer, int64_t tokens, const RowExperts& experts);
  void ListExpected(int64_t layer);
  void ListOfBlocks(int64_t layer);
  void Keep(const Rows& rows, const RowExperts& experts);
  Rows Prepare(const ExpertInputs& inputs, ThreadPool& pool);
  const Rows& PrepareLate(Part& part);
  ExpertStats RunHere(int64_t layer, const Rows& rows, const RowExperts& experts);
  void RunOnto(int64_t layer, const ExpertInputs& inputs, const Rows& rows,
               const RowExperts& experts);
  void RunBeside(int64_t layer, const ExpertInputs& inputs, const Rows& rows,
                 const RowExperts& experts);
  ExpertStats RunParts(const Rows& rows);
  void RunPart(Part& part, const Rows& rows);
  void RunAll(Part& part, const Rows& rows);
  void RunPartOnto(Part& part, const Rows& rows);
  int64_t PairsOf(const Part& part) const;
  void ForParts(FunctionRef<void(Part& part)> body);
  void Hand(Part& part, const Rows& rows);
  bool TakeBatch(Part& part, const Rows& rows, bool may_wait);
  void OpenOnto(std::span<const DeviceSpan> there, int64_t layer, const Rows& rows,
                const RowExperts& experts);
  bool ReleaseFound(bool may_wait);
  void GiveRows(std::span<const PinnedExpert> experts);
  int64_t StageOthers(int64_t pairs);
  bool AnyComputes(const Part& part, const DeviceOperator* but = nullptr) const;
  void Place(Part& part, const DeviceOperator::Batch& batch);
  ExpertWork WorkOf(const PinnedExpert& expert, const std::byte* blob) const;
  void Compute(Part& part, std::span<const PinnedExpert> ready, const Rows& rows);

  const ModelConfig& config_;
  const ExpertLayout& layout_;
  const CpuKernels& kernels_;
  const std::span<const LayerWeights> layers_of_weights_;
  const GatedActivation activation_;
  const ExpertGrid grid_;
  const ExpertPlacement* const placement_;
  HostActivations activations_;
  AlignedBuffer padded_;                 // [max_tokens, row of f32], where rows may lack padding
  std::vector<Part> parts_;              // [places]
  std::unique_ptr<ThreadPool> fan_out_;  // a thread for each place; null with one
  std::vector<int32_t> next_row_;        // [experts]
  std::vector<uint8_t> immediate_;       // [experts] a pair wants it that is not deferred
  std::optional<LayerBlock> block_;      // of which the next Run is
  std::vector<uint8_t> used_;            // [experts] by blocks of the layer so far
  bool whole_layers_ = false;            // the last layer of blocks wanted enough experts
  std::vector<LayerRows> layers_;        // two where pairs are deferred, else one
  LayerRows* open_ = nullptr;            // that parts run
  LayerRows* running_ = nullptr;         // deferred by the layer that runs
  LayerRows* before_ = nullptr;          // by the one before

  ExpertOutputs outputs_;                 // of the layer that runs
  ExpertOutputs deferred_;                // by the one before
  bool needed_rows_ = false;              // on the host, when a layer onto a device began
  const ExpertInputs* inputs_ = nullptr;  // of such a layer, while it runs
  Rows late_rows_;                        // what PrepareLate has made of them
  bool threw_ = false;                    // since Close
  bool failed_ = false;

  // Of a layer whose sum is a device's.
  bool runs_onto_ = false;
  DeviceOperator* onto_ = nullptr;  // whose outputs stay; null: none
  // [max_tokens * top_k] row of onto_->out(); -1: in slot_out; StepExperts::kComputed.
  std::vector<int32_t> pair_rows_;
  StepExperts* step_ = nullptr;  // that computes some itself; null: none
  int64_t step_layer_ = 0;
  std::vector<uint8_t> found_;      // [experts] 1: by the step
  std::vector<PinnedExpert> held_;  // of those
};

}  // namespace moesaic
