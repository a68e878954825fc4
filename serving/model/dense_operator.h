// DenseOperator: the dense part of a model on one device: the residual stream, embedding, norms,
// attention with the KV cache, routers, the MLPs that every token runs, and the head, with their
// weights. What comes to the host of a layer is its routing, for who finds and computes the experts
// (ExpertRunner), and goes back is their sum or, of experts on the same device, nothing but where
// their outputs are: a layer waits once.
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
//
// Owned by the Model; one thread calls. What is queued is waited for by AwaitRouting, EndStep, Head
// and Greedy, which throw Error when the device fails: the keys and values are there and nowhere
// else, so that a lost device is the end of all requests. The device outlives it. No allocation
// after construction but what streams take.
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
#include "serving/model/forward_batch.h"
#include "serving/model/step_experts.h"
#include "serving/model/weights.h"

namespace moesaic {

class DeviceOperator;

class DenseOperator {
 public:
  // Throws Error(kUnsupported) for what no kernel does, naming it.
  static void CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type);

  // Bytes that it takes of the device, KV memory and weights apart, and of the host (pinned).
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits);
  static uint64_t HostBytes(const ModelConfig& config, const ModelLimits& limits);

  // Decode steps as graphs, where the device can.
  struct Capture {
    bool layers = true;
    // Whole steps too: of experts of this layout, which this table has. Both or none; they outlive
    // the operator.
    const ExpertLayout* experts = nullptr;
    SlotTable* table = nullptr;
  };
  // Copies `weights`, which are of this type. Throws Error(kUnsupported / kResourceExhausted), and
  // the device's when a copy fails.
  DenseOperator(Device& device, const cuda::Kernels& kernels, const ModelConfig& config,
                WeightType type, const ModelWeights& weights, const ModelLimits& limits,
                const Capture& capture);
  // Waits for what is queued.
  ~DenseOperator();

  // A step: its tokens are embedded, and each Layer in turn queues all but the routed experts of a
  // sparse one, for which AwaitRouting and AddExperts follow. EndStep waits for the last, or, after
  // an error, AbandonStep, whatever it was.
  void BeginStep(const ForwardBatch& batch);
  // Instead of all Layers: queues the whole step, which computes the experts that it finds on the
  // device. AwaitRouting follows for each sparse layer in turn and, where it has missed experts,
  // their Answer (step_experts.h), computed by `experts` or sent from its host_out(). False: Layer
  // by Layer.
  bool RunStep(const DeviceOperator& experts);
  StepExperts* running_step() { return runs_ ? step_.get() : nullptr; }  // null: Layer by Layer
  void Layer(int64_t layer);
  // What a sparse layer's experts are given; valid until the next Layer.
  struct Routed {
    const int32_t* experts = nullptr;  // [rows, top_k]
    const float* weights = nullptr;    // [rows, top_k]
    const float* normed = nullptr;     // [rows, hidden] what experts multiply, before rounding
    DeviceSpan on_device;              // the same, [rows, ActivationStride(hidden)] bf16
    // Of a step that runs as a whole: who is missing. normed and on_device are valid where any is,
    // until they are answered for.
    std::span<const int32_t> missed;
  };
  Routed AwaitRouting(int64_t layer);
  // Residual stream [rows, hidden] of the running step, as the router of the layer that was waited
  // for sees it through its norm.
  const float* hidden() const { return seen_hidden_; }
  // Queues: residual += sum over slots, in order, of weight times output. Outputs are rows of
  // experts.out(), pair (row, slot) at pair_rows, after what `experts` has queued; the last
  // `others` of them, in all pair_rows.size(), are sent from experts.host_out(). weights: [rows,
  // top_k].
  void AddExperts(const DeviceOperator& experts, int64_t others, std::span<const int32_t> pair_rows,
                  const float* weights);
  void EndStep();
  void AbandonStep();

  // With limits.host_attention, instead of all the above but AddExperts: a pass begins; what an
  // earlier one that failed has left behind is forgotten.
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

  // Of these rows of the last step, at most limits.max_logit_rows: logits [rows, vocab], or the
  // token of the largest logit, the lower one of equals; -1 where a logit is not finite.
  void Head(std::span<const int32_t> rows, float* logits);
  void Greedy(std::span<const int32_t> rows, int32_t* tokens);

  int64_t whole_steps() const { return whole_steps_; }      // that ran as one graph
  int64_t captured() const { return graphs_->captured(); }  // graphs so far

 private:
  struct Sizes;

  template <typename T>
  const T* Upload(const std::vector<T>& values, int64_t most, uint64_t& used);
  void PadDecodeStep();
  void Embed(const int32_t* tokens);
  void Norm(const float* weight, bool normed);
  void Product(const PackedMatrix& w, const DeviceBuffer& x, int64_t rows, const DeviceBuffer& y,
               bool accumulate = false);
  void Logits(const PackedMatrix& w, const DeviceBuffer& out);
  void NormHeads(float* first, int64_t heads, int64_t n, const float* weight);
  void Queries(const LayerWeights& w);
  void Attention(int64_t layer, const LayerWeights& w);
  void QueueRouting(const LayerWeights& w);
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

  const cuda::Kernels& kernels_;
  const ModelConfig& config_;
  const ModelLimits limits_;
  const int64_t qkv_width_;
  const int64_t block_bytes_;  // of one layer

  // Of the device.
  DeviceBuffer weights_memory_;
  ModelWeights weights_;    // addresses of the device
  DeviceBuffer kv_;         // [layers, num_kv_blocks, block_bytes]
  DeviceBuffer cos_;        // [max_context_tokens, head_dim / 2] f32
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
  int64_t first_row_ = 0;           // of the rows that a module runs
  int64_t rows_ = 0;                // of the step, or of the module
  int64_t run_rows_ = 0;            // with those that fill up
  std::vector<int32_t> tokens_;     // [run rows]
  std::vector<int32_t> positions_;  // [run rows]
  std::vector<int32_t> slots_;      // [run rows]
  std::vector<int32_t> blocks_;     // of all slices, one after another
  std::vector<int32_t> count_;      // [1] rows_
  std::vector<cuda::AttentionSequence> sequences_;
  cuda::AttentionArgs attend_;
  const int32_t* device_positions_ = nullptr;
  const int32_t* device_slots_ = nullptr;
  const int32_t* device_rows_ = nullptr;  // one number: rows_
  const float* seen_hidden_ = nullptr;

  const Capture capture_;
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
