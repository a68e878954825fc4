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
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/expert_runner.h"
#include "serving/model/rope.h"
#include "serving/model/step_stats.h"
#include "serving/model/weights.h"

namespace moesaic {

// Consecutive tokens of one sequence. Its keys and values of the positions before are in the KV
// memory.
struct SequenceSlice {
  int64_t first_row = 0;  // row of the batch of its first token
  int64_t num_tokens = 0;
  int64_t start_position = 0;       // of its first token
  std::span<const int32_t> blocks;  // KV blocks of positions [0, start_position + num_tokens)
  int32_t request = 0;              // the caller's number, for hooks
  bool prefill = false;
};

struct ForwardBatch {
  std::span<const int32_t> tokens;        // [rows]
  std::span<const SequenceSlice> slices;  // rows in order, none left out
};

// Sees, and may replace, the routing of each sparse layer before it is used.
class RoutingHook {
 public:
  virtual ~RoutingHook() = default;
  // experts, weights: [rows, top_k]
  virtual void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                         std::span<float> weights) = 0;
};

struct ModelLimits {
  int64_t max_batch_tokens = 512;
  int64_t max_context_tokens = 4096;
  int64_t num_kv_blocks = 0;
  int64_t max_logit_rows = 64;
  WeightType kv_type = WeightType::kBf16;
};

class Model {
 public:
  // `experts` serves the routed experts and must outlive the model, as must kernels and pool.
  Model(ModelConfig config, ModelWeights weights, const ExpertLayout& expert_layout,
        ExpertProvider& experts, const CpuKernels& kernels, ThreadPool& pool,
        const ModelLimits& limits);

  const ModelConfig& config() const { return config_; }
  const ModelLimits& limits() const { return limits_; }

  // Runs all layers; the final hidden states stay until the next call. `hook` may be null. Throws
  // Error when an expert cannot be read: the batch's new positions are then not usable, everything
  // else is.
  StepStats Forward(const ForwardBatch& batch, RoutingHook* hook);

  // Logits of the given rows of the last batch: out [rows, vocab]. At most limits().max_logit_rows.
  void Logits(std::span<const int32_t> rows, float* out);

  const ModelWeights& weights() const { return weights_; }

  // Residual stream of the last batch, [rows, hidden] (after the last layer, before the final
  // norm); within a RoutingHook, of the running one, as the layer's router sees it through its
  // norm.
  const float* hidden() const { return hidden_.as<float>(); }

  // One block of 16 tokens, all layers.
  static uint64_t KvBlockBytes(const ModelConfig& config, WeightType kv_type);
  static uint64_t WorkspaceBytes(const ModelConfig& config, const CpuKernels& kernels,
                                 const ModelLimits& limits, int threads);

 private:
  // Consecutive rows of one slice whose attention is one task for each KV head.
  struct RowBlock {
    int64_t first_row = 0;
    int64_t rows = 0;
  };
  struct ChunkRange {
    int64_t begin = 0;
    int64_t end = 0;
  };

  void Embed(const ForwardBatch& batch);
  void Attention(int64_t layer, const ForwardBatch& batch);
  void StoreKv(int64_t layer, const ForwardBatch& batch);
  void Attend(int64_t layer, const ForwardBatch& batch);
  void AttendSplit(const ForwardBatch& batch);
  void ListRowBlocks(const ForwardBatch& batch);
  AttendArgs ArgsFor(const ForwardBatch& batch, const RowBlock& block, int64_t kv_head) const;
  ChunkRange ChunksOf(const AttendArgs& args) const;
  void FinishAttention(const RowBlock& block, int64_t kv_head, const float* totals);
  ExpertStats SparseMlp(int64_t layer, const ForwardBatch& batch, RoutingHook* hook);
  void Mlp(const LayerWeights& w, const std::byte* x, int64_t x_stride_bytes, int64_t rows,
           float* out);
  void Route(const LayerWeights& w, int64_t rows);
  void NormRows(const float* weight, int64_t rows);
  // Rows as a product with weights of w's type and inputs wants them.
  const std::byte* Activate(const float* x, int64_t stride, int64_t rows, const PackedMatrix& w,
                            int64_t* stride_bytes);
  std::byte* KvBlock(int64_t layer, int32_t block);
  void ForRows(int64_t rows, FunctionRef<void(int64_t row)> body);

  ModelConfig config_;
  ModelWeights weights_;
  const CpuKernels& kernels_;      // of the numerics class
  const CpuKernels& f32_kernels_;  // the same ISA's f32 kernels: the router never rounds its input
  ThreadPool& pool_;
  ModelLimits limits_;
  KvLayout kv_layout_;
  RopeTable rope_;
  ExpertRunner runner_;

  int64_t norm_stride_ = 0;  // floats
  int64_t qkv_stride_ = 0;
  int64_t attn_stride_ = 0;
  int64_t scratch_stride_ = 0;  // floats of one worker's attention scratch
  int64_t window_ = 0;          // of the layer that runs

  AlignedBuffer kv_;                              // [layers, num_kv_blocks, block_bytes]
  AlignedBuffer hidden_;                          // [rows, hidden] f32, the residual stream
  AlignedBuffer normed_;                          // [rows, norm_stride] f32
  AlignedBuffer activations_;                     // [rows, widest activation row]
  AlignedBuffer mlp_hidden_;                      // [rows, activation row of the MLP width]
  AlignedBuffer qkv_;                             // [rows, qkv_stride] f32
  AlignedBuffer attn_;                            // [rows, attn_stride] f32
  AlignedBuffer mlp_out_;                         // [rows, hidden] f32
  AlignedBuffer router_out_;                      // [rows, experts] f32
  AlignedBuffer split_partials_;                  // [split items, chunks, group, partial] f32
  AlignedBuffer scratch_;                         // [threads, scratch_stride] f32
  std::vector<int32_t> expert_ids_;               // [rows, top_k]
  std::vector<float> expert_weights_;             // [rows, top_k]
  std::vector<const std::byte*> block_pointers_;  // of all slices, one after another
  std::vector<int64_t> first_block_;              // [slices] into block_pointers_
  std::vector<int32_t> row_slice_;                // [rows]
  std::vector<RowBlock> row_blocks_;              // of the running batch
};

}  // namespace moesaic
