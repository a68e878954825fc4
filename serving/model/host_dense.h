// HostDense: the dense part of a model on the host, computed by the threads of the pools that its
// modules are given. What it does is dense_part.h's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/dense_part.h"
#include "serving/model/host_mixer.h"
#include "serving/model/host_rows.h"
#include "serving/model/weights.h"

namespace moesaic {

class HostDense : public DensePart {
 public:
  // `pool`: for what is of no module, and the largest of all; it, config and kernels must outlive
  // this. `projected`: rows [max_batch_tokens, projected_stride] for PreAttention, which must stay
  // likewise; null: it has its own.
  HostDense(const ModelConfig& config, ModelWeights weights, const CpuKernels& kernels,
            ThreadPool& pool, const ModelLimits& limits, float* projected = nullptr,
            int64_t projected_stride = 0);

  // Without weights and the state of sequences. `own_projected`: the rows for PreAttention too.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                 const ModelLimits& limits, int threads, bool own_projected);
  // Floats of a row that PreAttention and Attend leave.
  static int64_t ProjectedStride(const ModelConfig& config);
  static int64_t MixedStride(const ModelConfig& config);

  // From now on PreAttention leaves rows there, and Project takes them from there, laid out as
  // mixer_rows(); null: in mixer_rows(). For threads that compute in another memory than attention.
  void WorkIn(float* projected, float* mixed);

  void Begin(const ForwardBatch& batch, const DeviceOperator* experts) override;
  void PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) override;
  void Attend(int64_t layer, SliceRange slices, ThreadPool& pool) override;
  void Project(int64_t layer, RowRange rows, ThreadPool& pool) override;
  void Route(int64_t layer, RowRange rows, int32_t* ids, float* weights, bool host_rows,
             ThreadPool& pool) override;
  ExpertInputs OpenExperts(RowRange rows) override;
  void AddMlp(int64_t layer, RowRange rows, const ExpertOutputs& experts,
              const ExpertOutputs& deferred, ThreadPool& pool) override;
  void End() override {}
  void Continue(const ForwardBatch& batch) override { BeginMixers(batch); }
  float* residual() override { return hidden_.as<float>(); }
  HostMixer::CarriedRows carried() override;
  void Abandon() override {}
  void Head(std::span<const int32_t> rows, float* logits) override;
  void Greedy(std::span<const int32_t> rows, int32_t* tokens) override;
  const float* hidden() const override { return hidden_.as<float>(); }
  MixerRows mixer_rows() const override;
  std::span<const LayerWeights> host_layers() const override { return weights_.layers; }
  KvMemory kv_memory() override;
  void GiveBackKv(int64_t first_block) override;
  void PopulateState(ThreadPool& pool) override;

  // For SplitDense: a pass whose other modules are elsewhere. Attend of rows that a device
  // projected.
  void BeginMixers(const ForwardBatch& batch);
  void AttendForDevice(int64_t layer, SliceRange slices, ThreadPool& pool);
  HostMixer::Rows rows() const { return rows_; }
  float* hidden() { return hidden_.as<float>(); }

  const ModelWeights& weights() const { return weights_; }

 private:
  template <typename Spec, typename Mixer>
  void MakeMixer();
  HostMixer& MixerOf(int64_t layer) { return *mixer_of_layer_[static_cast<size_t>(layer)]; }
  const LayerWeights& Weights(int64_t layer) const {
    return weights_.layers[static_cast<size_t>(layer)];
  }
  float* HiddenRow(int64_t row) { return hidden_.as<float>() + row * config_.hidden_size; }
  float* NormedRow(int64_t row) { return normed_.as<float>() + row * norm_stride_; }
  // What the experts of sparse layers read.
  float* ExpertRow(int64_t row) {
    AlignedBuffer& rows = config_.experts_read_input() ? expert_normed_ : normed_;
    return rows.as<float>() + row * norm_stride_;
  }
  float* OutRow(int64_t row) { return out_.as<float>() + row * config_.hidden_size; }
  // x, out: [hidden].
  void Norm(const NormSpec& norm, const float* weight, const float* x, float* out) const;
  // y: the first of the rows, norm_stride apart.
  void NormRows(const NormSpec& norm, const float* weight, RowRange rows, float* y,
                ThreadPool& pool);
  // Of rows that are normed (x: the first of them), by f32 products: the router never rounds its
  // input.
  void RowLogits(const PackedMatrix& w, const float* bias, RowRange rows, const float* x,
                 float* out, ThreadPool& pool);
  void Mlp(const LayerWeights& w, const ActivatedRows& x, RowRange rows, ThreadPool& pool);
  void AddOut(RowRange rows, ThreadPool& pool, FunctionRef<float(int64_t row)> scale);
  void AddExperts(RowRange rows, const ExpertOutputs& experts, ThreadPool& pool);

  const ModelConfig& config_;
  const ModelWeights weights_;
  const CpuKernels& kernels_;      // of the numerics class
  const CpuKernels& f32_kernels_;  // the same ISA's f32 kernels
  ThreadPool& pool_;
  const ModelLimits limits_;
  const int64_t norm_stride_;  // floats
  HostActivations activations_;
  std::vector<std::unique_ptr<HostMixer>> mixers_;  // one of each kind
  std::vector<HostMixer*> mixer_of_layer_;          // [layers]

  AlignedBuffer hidden_;  // [rows, hidden] f32, the residual stream
  AlignedBuffer normed_;  // [rows, norm_stride] f32
  // Likewise, of experts that read the layer's input, which wait until its mixer has run.
  AlignedBuffer expert_normed_;
  AlignedBuffer projected_;    // [rows, projected stride] f32, unless given
  AlignedBuffer mixed_;        // [rows, mixed stride] f32
  AlignedBuffer mlp_hidden_;   // [rows, activation row of the MLP width]
  AlignedBuffer out_;          // [rows, hidden] f32
  AlignedBuffer router_out_;   // [rows, experts] f32
  HostMixer::Rows rows_;       // in the host's memory
  HostMixer::Rows work_rows_;  // of PreAttention and Project
};

}  // namespace moesaic
