// DenseOperator: the dense part of a model on one device. What it does is dense_part.h's.
//
// Decode steps are captured. With a slot table a step of few rows is one graph, which looks up its
// experts by itself (step_experts.h): the host follows, and is waited for where an expert is
// missing. Otherwise all that a layer queues at once is a graph, and the host goes ahead. Graphs
// are made at the first step of their kind and replayed from then on. Kinds differ in the number of
// rows and of the longest context's chunks, both rounded up to powers of two; rows that are only
// there to fill up have nothing to attend to and store nothing. What changes from step to step is
// read from tables on the device.
//
// With limits.host_attention attention and the KV cache are the host's, for passes in modules over
// groups of rows (Model::BeginPass; dense_modules.cpp): queries, keys and values, rotated, are
// copied to the host and attention outputs come back, both by the caller. What a module queues it
// waits for. The residual stream of a pass comes to the host at its end.
//
// Numerics: the class of kernels/cuda: inputs of products, queries, probabilities and hidden
// activations are rounded to bf16, sums, norms and routers are f32, a row's bits depend on no other
// row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/dense_graphs.h"
#include "serving/model/dense_part.h"
#include "serving/model/forward_batch.h"
#include "serving/model/step_experts.h"
#include "serving/model/step_tables.h"
#include "serving/model/weights.h"

namespace moesaic {

class DenseOperator : public DensePart {
 public:
  // Throws Error(kUnsupported) for what no kernel does, naming it.
  static void CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type);

  // Bytes that it takes of the device, KV memory and weights apart, and of the host (pinned).
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits);
  static uint64_t HostBytes(const ModelConfig& config, const ModelLimits& limits);

  // Copies `weights`, which are of this type. `capture`: decode steps, where the device can. Throws
  // Error(kUnsupported / kResourceExhausted), and the device's when a copy fails.
  DenseOperator(Device& device, const cuda::Kernels& kernels, const ModelConfig& config,
                WeightType type, const ModelWeights& weights, const ModelLimits& limits,
                bool capture = true);
  ~DenseOperator() override;

  void BeginStep(const ForwardBatch& batch) override;
  void CaptureSteps(const ExpertLayout& experts, SlotTable& table) override;
  bool RunStep(const DeviceOperator& experts) override;
  StepExperts* running_step() override { return runs_ ? step_.get() : nullptr; }
  void Layer(int64_t layer) override;
  Routed AwaitRouting(int64_t layer) override;
  const float* hidden() const override { return seen_hidden_; }
  void AddExperts(const DeviceOperator& experts, int64_t others, std::span<const int32_t> pair_rows,
                  const float* weights) override;
  void EndStep() override;
  void AbandonStep() override;
  void Head(std::span<const int32_t> rows, float* logits) override;
  void Greedy(std::span<const int32_t> rows, int32_t* tokens) override;
  int64_t whole_steps() const override { return whole_steps_; }
  int64_t captured() const override { return graphs_->captured(); }

  // With limits.host_attention, instead of all the above but AddExperts, Head and Greedy: a pass
  // begins; what an earlier one that failed has left behind is forgotten.
  void BeginPass(const ForwardBatch& batch);
  // Norm, projections, QK-norm and RoPE, into qkv().
  void PreAttention(int64_t layer, RowRange rows);
  // Output projection of attention(), added to the residual stream. Only queues.
  void Project(int64_t layer, RowRange rows);
  // Norm, then the dense MLP or, in a sparse layer, routing and the shared expert. `normed`:
  // whether Routed is to have it.
  Routed Route(int64_t layer, RowRange rows, bool normed);
  // Before AddExperts: of which rows; where they are.
  DeviceSpan OpenExperts(RowRange rows);
  // Waits for all of it and brings the residual stream: hidden [rows, hidden].
  void EndPass(float* hidden, int64_t rows);
  // On the device: [rows, qkv_width] f32 queries, keys and values; [rows, ActivationStride(heads *
  // head_dim)] bf16 attention outputs. On the host, pinned, the same.
  const DeviceBuffer& qkv() const { return qkv_; }
  const DeviceBuffer& attention() const { return attention_; }
  const HostBuffer& host_qkv() const { return host_qkv_; }
  const HostBuffer& host_attention() const { return host_attention_; }
  int64_t qkv_width() const { return qkv_width_; }

 private:
  struct Sizes;

  template <typename T>
  const T* Upload(const std::vector<T>& values, int64_t most, uint64_t& used);
  void PadDecodeStep();
  void Embed(const int32_t* tokens);
  void Norm(int64_t layer, const float* weight, bool normed);
  void Product(const PackedMatrix& w, const DeviceBuffer& x, int64_t rows, const DeviceBuffer& y,
               bool accumulate = false);
  void Logits(const PackedMatrix& w, const DeviceBuffer& out);
  void NormHeads(const NormSpec& norm, float* first, int64_t heads, int64_t n, const float* weight);
  void Queries(int64_t layer, const LayerWeights& w);
  void Attention(int64_t layer, const LayerWeights& w);
  void QueueRouting(int64_t layer, const LayerWeights& w);
  void BringRouting();
  void BringNormed();
  void Bring(const DeviceBuffer& from, int64_t first, int64_t count, const HostBuffer& to);
  void QueueAttention(int64_t layer);
  void QueueStep(const DeviceOperator& experts);
  void SetRows(RowRange rows);
  Routed RoutedRows() const;
  void Mlp(const LayerWeights& w);
  void QueueHead(std::span<const int32_t> rows);
  template <typename T>
  void Fetch(const DeviceBuffer& from, int64_t count, T* out);

  Device& device_;
  const cuda::Kernels& kernels_;
  const ModelConfig& config_;
  const ModelLimits limits_;
  const int64_t qkv_width_;
  const int64_t block_bytes_;  // of one layer

  // Of the device.
  DeviceBuffer weights_memory_;
  ModelWeights weights_;    // addresses of the device
  DeviceBuffer kv_;         // [layers, num_kv_blocks, block_bytes]
  DeviceBuffer cos_;        // [max_context_tokens, rotary_dim / 2] f32
  DeviceBuffer sin_;        // likewise
  DeviceBuffer hidden_;     // [rows, hidden] f32, the residual stream
  DeviceBuffer normed_;     // [rows, hidden] f32, for routers
  DeviceBuffer x_;          // [rows, ActivationStride(hidden)] bf16
  DeviceBuffer qkv_;        // [rows, qkv_width] f32
  DeviceBuffer attention_;  // [rows, ActivationStride(heads * head_dim)] bf16
  DeviceBuffer gate_;       // [rows, widest MLP] f32
  DeviceBuffer up_;         // likewise
  DeviceBuffer h_;          // [rows, ActivationStride(widest MLP)] bf16
  DeviceBuffer out_;        // [rows, hidden] or [logit rows, vocab] f32
  DeviceBuffer scores_;     // [rows, experts] f32
  DeviceBuffer routing_;    // [rows, top_k] int32, then [rows, top_k] f32
  DeviceBuffer sum_;        // likewise: where outputs are, and their weights
  DeviceBuffer chosen_;     // [logit rows] int32, rows and then tokens
  DeviceBuffer tables_;     // of the step
  DeviceBuffer partials_;   // of attention over long contexts
  DeviceSpan there_;        // x_
  // Of the host, pinned.
  std::unique_ptr<PinnedHostPool> pool_;
  HostBuffer host_hidden_;
  HostBuffer host_normed_;
  HostBuffer host_routing_;
  HostBuffer host_sum_;
  HostBuffer host_chosen_;
  HostBuffer host_out_;
  HostBuffer host_tables_;
  HostBuffer host_qkv_;        // with host_attention
  HostBuffer host_attention_;  // likewise

  // The step: addresses of the device in tables_.
  int64_t first_row_ = 0;  // of the rows that a module runs
  int64_t rows_ = 0;       // of the step, or of the module
  int64_t run_rows_ = 0;   // with those that fill up
  StepTables step_tables_;
  std::vector<int32_t> count_;  // [1] rows_
  cuda::AttentionArgs attend_;
  const int32_t* device_positions_ = nullptr;
  const int32_t* device_slots_ = nullptr;
  const int32_t* device_rows_ = nullptr;  // one number: rows_
  const float* seen_hidden_ = nullptr;

  const bool capture_;
  std::unique_ptr<StepExperts> step_;  // null: no whole steps
  bool runs_ = false;                  // the step, as a whole
  int64_t whole_steps_ = 0;

  std::unique_ptr<Event> routed_;
  // Part 2 l of layer l ends with its routing, part 2 l + 1 is what follows; the last is all
  // layers.
  std::unique_ptr<DenseGraphs> graphs_;
  std::unique_ptr<Stream> stream_;  // last: it goes first, and waits
};

}  // namespace moesaic
