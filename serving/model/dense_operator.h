// DenseOperator: the dense part of a model on one device: attention with the KV cache, the MLPs
// that every token runs, and the head, with their weights. The caller keeps the residual stream,
// norms, router and embedding on the host; rows go over as bf16 and come back as f32.
//
// Numerics: the class of kernels/cuda: rows, queries, probabilities and hidden activations are
// rounded to bf16, sums are f32, a row's bits depend on no other row.
//
// Owned by the Model; one thread calls. Calls wait for their result and throw Error when the device
// fails: the keys and values are there and nowhere else, so that a lost device is the end of all
// requests. The device outlives it. No allocation after construction but what streams take.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/device_rows.h"
#include "serving/model/forward_batch.h"
#include "serving/model/weights.h"

namespace moesaic {

class DenseOperator {
 public:
  // Throws Error(kUnsupported) for what no kernel does, naming it.
  static void CheckSupported(const ModelConfig& config, WeightType type, WeightType kv_type);

  // Bytes that it takes of the device, KV memory and weights apart, and of the host (pinned).
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits);
  static uint64_t HostBytes(const ModelConfig& config, const ModelLimits& limits);

  // Copies `weights`, which are of this type. Throws Error(kUnsupported / kResourceExhausted), and
  // the device's when a copy fails.
  DenseOperator(Device& device, const cuda::Kernels& kernels, const ModelConfig& config,
                WeightType type, const ModelWeights& weights, const ModelLimits& limits);
  // Waits for what is queued.
  ~DenseOperator();

  // Where the keys and values of the step's tokens go, and what each attends to.
  void BeginStep(const ForwardBatch& batch);

  // The rows of a call: [rows, hidden].
  // Attention of a layer, all rows of the step, the output projection included: out [rows, hidden].
  void Attention(ThreadPool& pool, int64_t layer, const HostRows& rows, float* out);
  // The MLP of a dense layer or the shared expert of a sparse one: out [rows, hidden].
  void Mlp(ThreadPool& pool, int64_t layer, const HostRows& rows, float* out);
  // Logits [rows, vocab]; at most limits.max_logit_rows.
  void Head(ThreadPool& pool, const HostRows& rows, float* out);
  // The token of the largest logit of each row, the lower one of equals; -1 where a logit is not
  // finite: tokens [rows]. At most limits.max_logit_rows.
  void Greedy(ThreadPool& pool, const HostRows& rows, int32_t* tokens);

 private:
  struct Sizes;

  template <typename T>
  const T* Upload(const std::vector<T>& values, uint64_t& used);
  void Product(const PackedMatrix& w, const DeviceBuffer& x, int64_t rows, const DeviceBuffer& y);
  void NormHeads(float* first, int64_t heads, int64_t n, const float* weight, int64_t rows);
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
  DeviceBuffer x_;          // [rows, ActivationStride(hidden)] bf16
  DeviceBuffer qkv_;        // [rows, qkv_width] f32
  DeviceBuffer attention_;  // [rows, ActivationStride(heads * head_dim)] bf16
  DeviceBuffer gate_;       // [rows, widest MLP] f32
  DeviceBuffer up_;         // likewise
  DeviceBuffer h_;          // [rows, ActivationStride(widest MLP)] bf16
  DeviceBuffer out_;        // [rows, hidden] or [logit rows, vocab] f32
  DeviceBuffer greedy_;     // [logit rows] int32
  DeviceBuffer tables_;     // of the step
  DeviceBuffer partials_;   // of attention over long contexts
  // Of the host, pinned.
  std::unique_ptr<PinnedHostPool> pool_;
  HostBuffer host_x_;
  HostBuffer host_out_;
  HostBuffer host_tables_;

  // The step: addresses of the device in tables_.
  std::vector<int32_t> positions_;  // [rows]
  std::vector<int32_t> slots_;      // [rows]
  std::vector<int32_t> blocks_;     // of all slices, one after another
  std::vector<cuda::AttentionSequence> sequences_;
  cuda::AttentionArgs attend_;
  const int32_t* device_positions_ = nullptr;
  const int32_t* device_slots_ = nullptr;

  std::unique_ptr<Stream> stream_;  // last: it goes first, and waits
};

}  // namespace moesaic
