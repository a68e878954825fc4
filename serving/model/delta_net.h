// DeltaNet: linear attention by the gated delta rule on the host (DeltaNetSpec), and the recurrent
// state of sequences, in slots of a fixed size (cache/state_slots.h).
//
// A HostMixer; all layers that have it are of the same sizes. The state is carried on token by
// token, in prompts as in answers, so that no bit depends on how a prompt is cut; a head's tokens
// of a step run one after the other, so that its state stays in a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/host_mixer.h"
#include "serving/model/host_rows.h"
#include "serving/model/weights.h"

namespace moesaic {

class DeltaNet : public HostMixer {
 public:
  // All references must outlive it. `most_threads`: of any pool that it is given.
  DeltaNet(const ModelConfig& config, const ModelWeights& weights, const CpuKernels& kernels,
           const ModelLimits& limits, int most_threads, HostActivations& activations);

  // Slots of state apart.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits, int threads);
  // One slot, of all layers; 0 for a model without such layers.
  static uint64_t SlotBytes(const ModelConfig& config);

  void Begin(const ForwardBatch& batch) override { batch_ = batch; }
  void PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                    const Rows& at, ThreadPool& pool) override;
  void Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) override;
  void Project(int64_t layer, RowRange rows, const Rows& at, float* y, ThreadPool& pool) override;

  AlignedBuffer& state() override { return state_; }
  bool is_recurrent() const override { return true; }

 private:
  // Consecutive rows of a sequence, and its state before and after them; -1: none before.
  struct Run {
    int64_t first_row = 0;
    int64_t tokens = 0;
    int32_t from = -1;
    int32_t to = -1;
  };

  void ListRuns(const SequenceSlice& slice, std::vector<Run>& runs) const;
  void Convolve(int64_t layer, const Run& run, int64_t head);
  void Recur(int64_t layer, const Run& run, int64_t head, float* scratch);
  // Of a layer in a slot; null for no slot. The inputs of the convolution, then the heads' states.
  float* State(int64_t layer, int32_t slot);

  const ModelWeights& weights_;
  const CpuKernels& kernels_;
  const CpuKernels& f32_kernels_;  // the same ISA's
  const DeltaNetSpec& spec_;
  const int64_t num_layers_;  // that have it
  const int most_threads_;
  const int64_t scratch_stride_;  // floats of one worker's scratch
  HostActivations& activations_;
  std::vector<int64_t> of_layer_;  // [layers] number among those that have it; -1: it does not
  std::vector<float> q_norm_;      // [key_dim], see the constructor
  std::vector<float> k_norm_;

  AlignedBuffer state_;    // [slots, layers that have it, layer's floats] f32
  AlignedBuffer scratch_;  // [threads, decays and betas of a step's tokens] f32

  // The pass.
  ForwardBatch batch_;
  Rows at_;                             // of the Attend that runs
  std::vector<std::vector<Run>> runs_;  // [slices of it], one after the other
};

}  // namespace moesaic
