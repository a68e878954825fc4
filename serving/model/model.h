// Model: one model's forward pass over a batch of tokens of several sequences: the layers, with the
// routed experts of each, over a dense part (dense_part.h), wherever that is.
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

#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/dense_part.h"
#include "serving/model/expert_runner.h"
#include "serving/model/forward_batch.h"
#include "serving/model/step_stats.h"

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
  // `dense` was made with these limits. `experts` serves the routed experts. `operators`: what the
  // devices of `experts` compute with, in their order, for as many tokens as
  // limits.max_batch_tokens; none: the host computes. The first devices are those of `dense`, if it
  // has some. Config, layout, experts, kernels and pool must outlive the model.
  Model(const ModelConfig& config, std::unique_ptr<DensePart> dense,
        const ExpertLayout& expert_layout, ExpertProvider& experts, const CpuKernels& kernels,
        ThreadPool& pool, const ModelLimits& limits, DeviceOperators operators = {});

  // The routed experts in several places.
  Model(const ModelConfig& config, std::unique_ptr<DensePart> dense,
        const ExpertLayout& expert_layout, ExpertPlaces experts, const CpuKernels& kernels,
        ThreadPool& pool, const ModelLimits& limits);

  const ModelConfig& config() const { return config_; }
  const ModelLimits& limits() const { return limits_; }
  const DensePart& dense() const { return *dense_; }

  // Has the kernel give the memory of the whole KV cache now, all threads at it, not in the passes
  // that use its blocks first, with one thread at work and the others waiting. For an engine that
  // is going to use most of it. Best effort.
  void PopulateKvCache() { dense_->PopulateState(pool_); }

  // See DensePart.
  KvMemory kv_memory() { return dense_->kv_memory(); }
  void GiveBackKv(int64_t first_block) { dense_->GiveBackKv(first_block); }

  // Runs all layers; the final hidden states stay until the next call. `hook` may be null. Throws
  // Error when an expert cannot be read, or a device of the dense part fails: the batch's new
  // positions are then not usable; everything else is, if no device was lost.
  // `whole_layers`: while a layer that wants most of its experts runs, the next ones' are fetched
  // as a whole in the order of need, and not as they are foreseen. Nothing depends on it but time.
  // Not with limits().defer_experts, nor where the residual stream is a device's.
  StepStats Forward(const ForwardBatch& batch, RoutingHook* hook, bool whole_layers = false);
  // What the last Forward has done that has thrown, once: no step, no tokens, but the work of the
  // layers before.
  StepStats TakeUnfinished() { return std::exchange(unfinished_, {}); }

  // Whether passes can run a layer at a time: the residual stream is the host's, and nothing is
  // added a layer later.
  bool runs_layers() const { return dense_->residual() != nullptr && limits_.defer_experts == 0; }
  // One layer of one block of rows of a pass that runs layer after layer (layer_pass.h). Layer 0
  // begins with the batch's tokens, the others with what the caller has put into residual(), where
  // the rows are then. Counts no tokens. expert_ids() and expert_weights() are the routing of the
  // rows, where the layer is sparse. Throws as Forward; EndLayers then.
  StepStats RunLayer(int64_t layer, const ForwardBatch& batch, const LayerBlock& block);
  // The last block of such a pass has run, or none will.
  void EndLayers() { runner_.EndBlocks(); }
  float* residual() { return dense_->residual(); }  // [rows, hidden]; null: it is a device's
  HostMixer::CarriedRows carried() { return dense_->carried(); }  // besides, likewise
  // The bytes of a row of it, at most.
  static uint64_t CarriedBytes(const ModelConfig& config);
  std::span<const int32_t> expert_ids() const { return expert_ids_; }        // [rows, top_k]
  std::span<const float> expert_weights() const { return expert_weights_; }  // [rows, top_k]

  // The same pass in modules: BeginPass, then for each layer and any groups of rows, each group in
  // this order, PreAttention, Attend, Project, Route and RunMlp. A group's bits do not depend on
  // the others. Modules of different groups may run at the same time on different pools where one
  // is Attend and the other is not; of one layer the next one's PreAttention needs all of RunMlp.
  // Errors of a device are thrown; BeginPass may be called again.
  //
  // Counts the tokens and embeds them. The batch must live until the pass ends.
  StepStats BeginPass(const ForwardBatch& batch);
  // Norm and projections; before them the experts of each row, where these read the layer's input.
  void PreAttention(int64_t layer, RowRange rows, ThreadPool& pool);
  // The layer's mixer over these sequences, whose state grows. The pool has at most as many threads
  // as the model's.
  void Attend(int64_t layer, SliceRange slices, ThreadPool& pool);
  // Output projection, added to the residual stream.
  void Project(int64_t layer, RowRange rows, ThreadPool& pool) {
    dense_->Project(layer, rows, pool);
  }
  // Norm and, in a sparse layer, the experts of each row, unless PreAttention has routed them.
  void Route(int64_t layer, RowRange rows, ThreadPool& pool);
  // Shows the routing of these rows to the hook, in a sparse layer.
  void ShowRouting(int64_t layer, RowRange rows, RoutingHook& hook);
  // Routed and shared experts or the dense MLP, added to the residual stream, then what the layer
  // before deferred (with limits().defer_experts, only the rows of the whole batch are run). Throws
  // Error when an expert cannot be had.
  ExpertStats RunMlp(int64_t layer, RowRange rows, ThreadPool& pool);
  // After the last layer.
  void EndPass() { dense_->End(); }

  RowRange RowsOf(SliceRange slices) const { return moesaic::RowsOf(batch_, slices); }
  // Where Attend finds and leaves rows in the host's memory; see dense_part.h.
  DensePart::MixerRows mixer_rows() const { return dense_->mixer_rows(); }
  // Whether, since the last call, RunMlp has thrown because the device that has the residual stream
  // can compute no more experts. Another pass may succeed.
  bool TakeExpertFailure() { return runner_.TakeFailure(); }

  // Logits of the given rows of the last batch: out [rows, vocab]. At most limits().max_logit_rows.
  // Throws Error when the device that has the head fails.
  void Logits(std::span<const int32_t> rows, float* out);
  // Whether tokens can be chosen where the head is computed, on a device.
  bool has_greedy_tokens() const { return dense_->has_greedy(); }
  // Instead of Logits of the same rows, where the largest is all that is wanted: the tokens that
  // ArgMax would take of them, without bringing them over; -1 where a logit is not finite: tokens
  // [rows]. Throws Error when the device fails.
  void GreedyTokens(std::span<const int32_t> rows, int32_t* tokens);

  // Residual stream of the last batch, [rows, hidden], as far as it is on the host: after the last
  // layer, before the final norm; within a RoutingHook, of the running one, as the layer's router
  // sees it through its norm.
  const float* hidden() const { return dense_->hidden(); }

  // One slot of the state of its recurrent layers; 0: it has none.
  static uint64_t StateSlotBytes(const ModelConfig& config);
  // One block of the pool: kKvBlockTokens tokens in one group of layers (core/config/kv_groups.h).
  static uint64_t KvBlockBytes(const ModelConfig& config, WeightType kv_type);
  // Of so many tokens in all layers.
  static uint64_t KvBytesOfAllLayers(const ModelConfig& config, WeightType kv_type);
  // `places` of experts. `dense_elsewhere`: the dense part is on devices.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                 const ModelLimits& limits, int threads, int places = 1,
                                 bool dense_elsewhere = false);

 private:
  StepStats Count(const ForwardBatch& batch);
  void RouteRows(int64_t layer, RowRange rows, ThreadPool& pool);
  // PreAttention of all rows. Where the layer's experts are known before it, the hook (which may be
  // null) sees them, and those that are missing are on their way while the layer attends.
  void BeginLayer(int64_t layer, RowRange rows, RoutingHook* hook);
  // Marks in deferred_ what of the layer's routing is added one layer later. Whether there is any.
  bool MarkDeferred(int64_t layer);
  // RunMlp; where the residual stream is a device's, the experts stay open (ExpertRunner::Close).
  ExpertStats OpenMlp(int64_t layer, RowRange rows, ThreadPool& pool);

  const ModelConfig& config_;
  ThreadPool& pool_;
  const ModelLimits limits_;
  ExpertRunner runner_;
  std::unique_ptr<DensePart> dense_;   // goes before what its devices read
  std::vector<int32_t> expert_ids_;    // [rows, top_k]
  std::vector<float> expert_weights_;  // [rows, top_k]
  std::vector<uint8_t> deferred_;      // [rows, top_k], with limits_.defer_experts
  ForwardBatch batch_;                 // that runs
  StepStats unfinished_;
};

}  // namespace moesaic
