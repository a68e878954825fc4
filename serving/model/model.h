// Model: weights, KV memory and workspace of one model, and its forward pass over a batch of tokens
// of several sequences.
//
// Owned by the engine; one thread (the owner) calls Forward and Logits. Rows are independent of
// each other: a token's hidden state has the same bits whatever else is in the batch, however
// prefill is cut into chunks and wherever its experts were (architecture, rule 1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/dense_operator.h"
#include "serving/model/expert_runner.h"
#include "serving/model/forward_batch.h"
#include "serving/model/rope.h"
#include "serving/model/step_stats.h"
#include "serving/model/weights.h"

namespace moesaic {

// Sees, and may replace, the routing of each sparse layer before it is used.
class RoutingHook {
 public:
  virtual ~RoutingHook() = default;
  // experts, weights: [rows, top_k]
  virtual void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                         std::span<float> weights) = 0;
  // It replaces nothing: the pass need not wait for it.
  virtual bool OnlyWatches() const { return false; }
};

class Model {
 public:
  // `experts` serves the routed experts and must outlive the model, as must kernels and pool.
  // `operators`: what the devices of `experts` compute with, in their order, for as many tokens as
  // limits.max_batch_tokens; none: the host computes. `dense`: what has the residual stream and
  // computes all but experts on the first of these devices, made with these limits; null: the host
  // does. With it, Forward is the only pass, and `weights` may be shapes without memory, or, with
  // limits.host_attention, that in modules is.
  Model(ModelConfig config, ModelWeights weights, const ExpertLayout& expert_layout,
        ExpertProvider& experts, const CpuKernels& kernels, ThreadPool& pool,
        const ModelLimits& limits, DeviceOperators operators = {},
        std::unique_ptr<DensePart> dense = nullptr);

  // The routed experts in several places.
  Model(ModelConfig config, ModelWeights weights, const ExpertLayout& expert_layout,
        ExpertPlaces experts, const CpuKernels& kernels, ThreadPool& pool,
        const ModelLimits& limits, std::unique_ptr<DensePart> dense = nullptr);

  const ModelConfig& config() const { return config_; }
  const ModelLimits& limits() const { return limits_; }

  // Has the kernel give the memory of the whole KV cache now, all threads at it, not in the passes
  // that use its blocks first, with one thread at work and the others waiting. For an engine that
  // is going to use most of it. Best effort.
  void PopulateKvCache();

  // Runs all layers; the final hidden states stay until the next call. `hook` may be null. Throws
  // Error when an expert cannot be read: the batch's new positions are then not usable, everything
  // else is.
  StepStats Forward(const ForwardBatch& batch, RoutingHook* hook);

  // The same pass in modules: BeginPass, then for each layer and any groups of rows, each group in
  // this order, PreAttention, Attend, Project, Route and RunMlp. A group's bits do not depend on
  // the others. Modules of different groups may run at the same time on different pools where one
  // is Attend and the other is not; of one layer the next one's PreAttention needs all of RunMlp.
  //
  // Where a device has the dense part, all but Attend run there, and the caller copies: rows of
  // qkv_on_device() to qkv() before Attend, of sent_attention() to attention_on_device() after it.
  // Errors of the device are thrown; BeginPass may be called again.
  //
  // Counts the tokens and embeds them. The batch must live until the pass ends.
  StepStats BeginPass(const ForwardBatch& batch);
  // Norm and projections into qkv_rows, laid out as qkv().
  void PreAttention(int64_t layer, RowRange rows, ThreadPool& pool, float* qkv_rows);
  // QK-norm, RoPE, keys and values into the cache, attention: from qkv() to attention(). The pool
  // has at most as many threads as the model's.
  void Attend(int64_t layer, SliceRange slices, ThreadPool& pool);
  // Output projection of attention_rows, laid out as attention(), added to the residual stream.
  void Project(int64_t layer, RowRange rows, ThreadPool& pool, const float* attention_rows);
  // Norm and, in a sparse layer, the experts of each row.
  void Route(int64_t layer, RowRange rows, ThreadPool& pool);
  // Shows the routing of these rows to the hook, in a sparse layer.
  void ShowRouting(int64_t layer, RowRange rows, RoutingHook& hook);
  // Routed and shared experts or the dense MLP, added to the residual stream, then what the layer
  // before deferred (with limits().defer_experts, only the rows of the whole batch are run). Throws
  // Error when an expert cannot be had.
  ExpertStats RunMlp(int64_t layer, RowRange rows, ThreadPool& pool);

  // After the last layer; where a device has the residual stream, it comes to the host.
  void EndPass();

  // Consecutive slices have consecutive rows.
  RowRange RowsOf(SliceRange slices) const;
  float* qkv() { return qkv_rows_; }  // [rows, qkv_stride]
  int64_t qkv_stride() const { return qkv_stride_; }
  static int64_t QkvStride(const ModelConfig& config);
  static int64_t AttentionStride(const ModelConfig& config);
  float* attention() { return attn_.as<float>(); }  // [rows, attention_stride]
  int64_t attention_stride() const { return attn_stride_; }

  // Whether modules run on a device. With limits.host_attention LoseDense ends that between passes:
  // from then on the host computes them.
  bool dense_in_use() const { return dense_ != nullptr && !dense_lost_; }
  void LoseDense() { dense_lost_ = true; }
  // Whether, since the last call, a module has thrown because of that device. Another pass may
  // succeed.
  bool TakeDenseFailure() { return std::exchange(dense_failed_, false); }
  // Attention outputs as the device takes them, `row_bytes` each.
  struct SentRows {
    const std::byte* data = nullptr;
    uint64_t row_bytes = 0;
  };
  SentRows sent_attention() const;

  // Logits of the given rows of the last batch: out [rows, vocab]. At most limits().max_logit_rows.
  // Throws Error when the device that has the head fails; with limits.host_attention the host does
  // it then.
  void Logits(std::span<const int32_t> rows, float* out);

  const DensePart* dense() const { return dense_.get(); }  // null: the host does it

  // Whether tokens can be chosen where the head is computed, on a device.
  bool has_greedy_tokens() const { return dense_in_use(); }
  // Instead of Logits of the same rows, where the largest is all that is wanted: the tokens that
  // ArgMax would take of them, without bringing them over; -1 where a logit is not finite: tokens
  // [rows]. Throws Error when the device fails.
  void GreedyTokens(std::span<const int32_t> rows, int32_t* tokens);

  const ModelWeights& weights() const { return weights_; }

  // Residual stream of the last batch, [rows, hidden] (after the last layer, before the final
  // norm; not where a device has it, but with limits.host_attention); within a RoutingHook, of the
  // running one, as the layer's router sees it through its norm (but with limits.host_attention).
  const float* hidden() const {
    return dense_ && !limits_.host_attention ? dense_->hidden() : hidden_.as<float>();
  }

  // One block of 16 tokens, all layers.
  static uint64_t KvBlockBytes(const ModelConfig& config, WeightType kv_type);
  // `places` of experts. `dense_elsewhere`: of a model that is given its dense part, whose host
  // only computes experts.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                 const ModelLimits& limits, int threads, int places = 1,
                                 bool dense_elsewhere = false);

 private:
  // Consecutive rows of one slice whose attention, with task_heads_ KV heads, is one task.
  struct RowBlock {
    int64_t first_row = 0;
    int64_t rows = 0;
  };
  struct ChunkRange {
    int64_t begin = 0;
    int64_t end = 0;
  };

  void RunOnDevice(RowRange rows, RoutingHook* hook, StepStats& stats);
  void RunExpertsOnDevice(int64_t layer, RowRange rows, const DensePart::Routed& routed,
                          RoutingHook* hook);
  void TakeRouting(RowRange rows, const DensePart::Routed& routed, bool normed, ThreadPool& pool);
  ExpertStats RunRoutedOnDevice(int64_t layer, RowRange rows, ThreadPool& pool);
  void OnDense(FunctionRef<void()> module);
  void LogitsOnHost(std::span<const int32_t> rows, float* out);
  // Marks in deferred_ what of the layer's routing is added one layer later. Whether there is any.
  bool MarkDeferred(int64_t layer);
  ExpertStats RunMlpOf(int64_t layer, RowRange rows, ThreadPool& pool);
  void Rotate(int64_t layer, int64_t position, float* q);
  void StoreKv(int64_t layer, RowRange rows, ThreadPool& pool);
  void AttendRows(int64_t layer, ThreadPool& pool);
  void AttendSplit(int64_t layer, ThreadPool& pool);
  void ListRowBlocks(SliceRange slices, ThreadPool& pool);
  // Tasks of attention in the slices listed_, not counting parts of contexts.
  int64_t num_tasks() const;
  int64_t tasks_per_block() const;
  const RowBlock& BlockOf(int64_t task) const;
  AttendArgs ArgsFor(int64_t layer, int64_t task) const;
  ChunkRange ChunksOf(const AttendArgs& args) const;
  void FinishAttention(int64_t layer, const RowBlock& block, const AttendArgs& args, float* totals);
  // Into mlp_out_.
  void Mlp(const LayerWeights& w, const std::byte* x, int64_t x_stride_bytes, RowRange rows,
           ThreadPool& pool);
  void AddMlpOut(RowRange rows, ThreadPool& pool, FunctionRef<float(int64_t row)> scale);
  void NormRows(const NormSpec& norm, const float* weight, RowRange rows, ThreadPool& pool);
  // Rows as a product with weights of w's type and inputs wants them.
  const std::byte* Activate(const float* x, int64_t stride, int64_t rows, const PackedMatrix& w,
                            ThreadPool& pool, int64_t* stride_bytes);
  std::byte* KvBlock(int64_t layer, int32_t block);
  float* HiddenRow(int64_t row) { return hidden_.as<float>() + row * config_.hidden_size; }
  float* NormedRow(int64_t row) { return normed_.as<float>() + row * norm_stride_; }
  float* MlpOutRow(int64_t row) { return mlp_out_.as<float>() + row * config_.hidden_size; }
  static void ForRows(ThreadPool& pool, RowRange rows, FunctionRef<void(int64_t row)> body);

  ModelConfig config_;
  ModelWeights weights_;
  const CpuKernels& kernels_;      // of the numerics class
  const CpuKernels& f32_kernels_;  // the same ISA's f32 kernels: the router never rounds its input
  ThreadPool& pool_;
  ModelLimits limits_;
  KvLayout kv_layout_;
  RopeTable rope_;
  ExpertRunner runner_;
  std::unique_ptr<DensePart> dense_;  // null: the host does it
  DenseOperator* const modules_;      // dense_, with limits.host_attention
  bool dense_lost_ = false;
  bool dense_failed_ = false;

  int64_t norm_stride_ = 0;  // floats
  int64_t qkv_stride_ = 0;
  int64_t attn_stride_ = 0;
  int64_t scratch_stride_ = 0;  // floats of one worker's attention scratch

  // With dense_ and without host_attention there are none of these but normed_ and activations_.
  AlignedBuffer kv_;                              // [layers, num_kv_blocks, block_bytes]
  AlignedBuffer hidden_;                          // [rows, hidden] f32, the residual stream
  AlignedBuffer normed_;                          // [rows, norm_stride] f32
  AlignedBuffer activations_;                     // [rows, widest activation row]
  AlignedBuffer mlp_hidden_;                      // [rows, activation row of the MLP width]
  AlignedBuffer qkv_;                             // [rows, qkv_stride] f32, but with host_attention
  float* qkv_rows_ = nullptr;                     // likewise, or the device's pinned memory
  AlignedBuffer attn_;                            // [rows, attn_stride] f32
  AlignedBuffer mlp_out_;                         // [rows, hidden] f32
  AlignedBuffer router_out_;                      // [rows, experts] f32
  AlignedBuffer split_partials_;                  // [split items, chunks, group, partial] f32
  AlignedBuffer scratch_;                         // [threads, scratch_stride] f32
  std::vector<int32_t> expert_ids_;               // [rows, top_k]
  std::vector<float> expert_weights_;             // [rows, top_k]
  std::vector<uint8_t> deferred_;                 // [rows, top_k], with limits_.defer_experts
  std::vector<const std::byte*> block_pointers_;  // of all slices, one after another
  std::vector<int64_t> first_block_;              // [slices] into block_pointers_
  std::vector<int32_t> row_slice_;                // [rows]
  std::vector<RowBlock> row_blocks_;              // of the slices listed_
  int64_t task_heads_ = 1;                        // likewise
  SliceRange listed_;
  ForwardBatch batch_;  // that runs
};

}  // namespace moesaic
