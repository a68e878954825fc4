// DenseOperator: the dense part of a model on one device. What it does is dense_part.h's.
//
// Decode steps are captured: all that a layer queues at once is a graph, made at the first step of
// its kind and replayed from then on. Kinds differ in the number of rows and of the longest
// context's chunks, both rounded up to powers of two; rows that are only there to fill up have
// nothing to attend to and store nothing. What changes from step to step is read from tables on the
// device.
//
// Numerics: the class of kernels/cuda: inputs of products, queries, probabilities and hidden
// activations are rounded to bf16, sums, norms and routers are f32, a row's bits depend on no other
// row.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/function_ref.h"
#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/dense_part.h"
#include "serving/model/forward_batch.h"
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
  void Layer(int64_t layer) override;
  Routed AwaitRouting() override;
  const float* hidden() const override;
  void AddExperts(const DeviceOperator& experts, int64_t others, std::span<const int32_t> pair_rows,
                  const float* weights) override;
  void EndStep() override;
  void AbandonStep() override;
  void Head(std::span<const int32_t> rows, float* logits) override;
  void Greedy(std::span<const int32_t> rows, int32_t* tokens) override;
  int64_t captured() const override { return captured_; }

 private:
  struct Sizes;

  template <typename T>
  const T* Upload(const std::vector<T>& values, int64_t most, uint64_t& used);
  void PadDecodeStep();
  // Part 2 l of layer l ends with its routing, part 2 l + 1 is what follows.
  void RunPart(int64_t part, FunctionRef<void()> queue);
  void Norm(const float* weight, float* out);
  void Product(const PackedMatrix& w, const DeviceBuffer& x, int64_t rows, const DeviceBuffer& y,
               bool accumulate = false);
  void Logits(const PackedMatrix& w, const DeviceBuffer& out);
  void NormHeads(float* first, int64_t heads, int64_t n, const float* weight);
  void Attention(int64_t layer, const LayerWeights& w);
  void Route(const LayerWeights& w);
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
  const DeviceBuffer* const there_ = &x_;
  // Of the host, pinned.
  std::unique_ptr<PinnedHostPool> pool_;
  HostBuffer host_hidden_;
  HostBuffer host_normed_;
  HostBuffer host_routing_;
  HostBuffer host_sum_;
  HostBuffer host_chosen_;
  HostBuffer host_out_;
  HostBuffer host_tables_;

  // The step: addresses of the device in tables_.
  int64_t rows_ = 0;
  int64_t run_rows_ = 0;            // with those that fill up
  std::vector<int32_t> tokens_;     // [run rows]
  std::vector<int32_t> positions_;  // [run rows]
  std::vector<int32_t> slots_;      // [run rows]
  std::vector<int32_t> blocks_;     // of all slices, one after another
  std::vector<cuda::AttentionSequence> sequences_;
  cuda::AttentionArgs attend_;
  const int32_t* device_positions_ = nullptr;
  const int32_t* device_slots_ = nullptr;

  // By run rows and longest context.
  using Graphs = std::vector<std::unique_ptr<Graph>>;  // [2 * layers] null: not captured yet
  std::map<std::pair<int64_t, int64_t>, Graphs> graphs_;
  Graphs* graphs_of_step_ = nullptr;  // null: it is not replayed
  const bool capture_;
  bool warned_ = false;  // that one could not be captured
  int64_t captured_ = 0;

  std::unique_ptr<Event> routed_;
  std::unique_ptr<Stream> stream_;  // last: it goes first, and waits
};

}  // namespace moesaic
