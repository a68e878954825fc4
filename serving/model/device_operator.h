// DeviceOperator: the products of routed experts on one device, where their weights are: the rows
// of a layer are sent over once, each batch of experts is gate, up, SwiGLU and down as grouped
// products on a stream of its own, and the outputs come back. The host computes other experts
// meanwhile; nothing waits but TakeOldest.
//
// Where the residual stream is on the same device (device_dense.h), rows need not be sent and
// outputs stay: BeginLayerThere.
//
// Numerics: the class of kernels/cuda/products.h (kMatrix): rows and the hidden activations are
// rounded to bf16, sums are f32 in an order that depends neither on the batch nor on other rows.
// Outputs are kept per (token, slot), so that the caller can sum them in slot order.
//
// Owned by the Model; one thread calls. The device and its experts' memory outlive it. No
// allocation after construction but what streams take.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "core/io/expert_layout.h"
#include "kernels/cuda/kernels.h"
#include "prefetch/link/expert_provider.h"
#include "serving/model/device_rows.h"
#include "serving/model/weights.h"

namespace moesaic {

// The (token, slot) pairs of a layer, sorted by expert.
struct RowGroups {
  std::span<const int32_t> first_row;   // [experts + 1] expert e has the rows [e], [e + 1) of:
  std::span<const int32_t> token_rows;  // [pairs] row of x
};

class DeviceOperator {
 public:
  // Throws Error(kUnsupported) for weights that no kernel takes, Error(kResourceExhausted) when the
  // device or the host has not got the memory.
  DeviceOperator(Device& device, const cuda::Kernels& kernels, const ExpertLayout& layout,
                 const ModelConfig& config, int64_t max_tokens);
  // Waits for what is queued.
  ~DeviceOperator();

  // Bytes that it takes of the device and, pinned, of the host.
  static uint64_t DeviceBytes(const ModelConfig& config, int64_t max_tokens);
  static uint64_t HostBytes(const ModelConfig& config, int64_t max_tokens);
  // Tokens of a layer that one can take.
  static int64_t MostTokens(const ModelConfig& config);
  // Throws as the constructor does, for weights and sizes.
  static void CheckSupported(const ExpertLayout& layout, const ModelConfig& config,
                             int64_t max_tokens);
  // As kernels call them; throws for those that no kernel takes.
  static cuda::Weights WeightsOf(const ExpertLayout& layout);

  // Of experts that have biases: copies those of all layers to the device. Without this call none
  // are added. Throws Error when the device fails.
  void LoadBiases(std::span<const LayerWeights> layers);

  // False once anything has failed: the device computes nothing any more, the host has to.
  bool usable() const { return !error_.has_value(); }

  // rows: [tokens, hidden]. All batches have been taken. What the arguments name must stay until
  // they have been again.
  void BeginLayer(const HostRows& rows, const RowGroups& groups);
  // Instead of BeginLayer, when the rows are on the device already: x [..,
  // ActivationStride(hidden)] bf16. Outputs come back all the same or, if they are to stay, stay in
  // out(), in the order in which experts are queued.
  void BeginLayerThere(const DeviceSpan& x, const RowGroups& groups, bool outputs_stay);
  // Queues the products of experts whose blobs are in this device's memory, at least one, none
  // twice in a layer.
  void Queue(ThreadPool& pool, std::span<const PinnedExpert> experts);

  struct Batch {
    std::span<const PinnedExpert> experts;
    bool failed = false;
    // Outputs [rows of the experts, one after another; hidden], until the next BeginLayer; null
    // when the batch failed, or its outputs stay on the device.
    const float* out = nullptr;
  };
  int64_t batches() const { return queued_ - taken_; }  // not taken yet
  // The oldest is done (or has failed): taking it would not wait.
  bool OldestDone() const;
  // Waits for the oldest batch. Its experts' memory is not read any more.
  Batch TakeOldest();
  // Why it is not usable.
  const std::optional<Error>& error() const { return error_; }

  // Of outputs that stay: [pairs, hidden] f32, of which the first queued_rows() are, or will be,
  // the outputs of what was queued in this layer; the caller may fill the others, for which there
  // is as much pinned memory. Waits on `stream` for what was queued.
  const DeviceBuffer& out() const { return out_; }
  const HostBuffer& host_out() const { return host_out_; }
  int64_t queued_rows() const { return out_rows_; }
  void LetWait(Stream& stream) const;

 private:
  struct Queued {
    std::unique_ptr<Event> done;
    size_t first_expert = 0;  // in experts_
    size_t num_experts = 0;
    int64_t first_row = 0;  // of out
  };
  // A batch's numbers, as they lie in `tables` of host and device.
  struct Tables {
    uint64_t bytes = 0;
    uint64_t weights[3] = {};  // offsets of [experts] pointers: gate, up, down
    uint64_t offsets = 0;      // [experts + 1]
    uint64_t token_rows = 0;   // [rows]
    uint64_t experts = 0;      // [experts] their indices in the layer
  };
  static Tables TablesOf(size_t experts, int64_t rows);
  static uint64_t TableBytes(const ModelConfig& config, int64_t max_tokens);

  void FillTables(std::span<const PinnedExpert> experts, const Tables& tables, std::byte* memory);
  void Launch(const Tables& tables, const std::byte* memory, std::span<const PinnedExpert> experts,
              int64_t rows, float* out);
  // Of a layer, of gate, up or down; null: there are none.
  const float* BiasesOf(int64_t layer, size_t section) const;
  void GiveUp(const Error& error);

  Device& device_;
  const cuda::Kernels& kernels_;
  const ExpertLayout& layout_;
  const int64_t hidden_;
  const int64_t intermediate_;
  const int64_t num_experts_;
  const MlpSpec expert_;
  const cuda::Weights type_;
  std::optional<Error> error_;

  // Of the device.
  DeviceBuffer x_;       // [max_tokens, ActivationStride(hidden)] bf16
  DeviceBuffer tables_;  // of all batches of a layer, one after another
  DeviceBuffer gate_;    // [pairs, intermediate] f32
  DeviceBuffer up_;      // likewise
  DeviceBuffer h_;       // [pairs, ActivationStride(intermediate)] bf16
  DeviceBuffer out_;     // [pairs, hidden] f32
  // [layers] gate and up [experts, intermediate], down [experts, hidden]; none until they are
  // loaded
  DeviceBuffer biases_;
  // Of the host, pinned.
  PinnedHostPool pool_;
  HostBuffer host_x_;
  HostBuffer host_tables_;
  HostBuffer host_out_;

  // The open layer.
  HostRows rows_;
  RowGroups groups_;
  bool sent_ = false;
  bool stays_ = false;  // the outputs, on the device
  const uint16_t* device_x_ = nullptr;
  uint64_t tables_used_ = 0;
  int64_t out_rows_ = 0;
  std::vector<PinnedExpert> experts_;  // [experts] of the batches, in order
  std::vector<Queued> queue_;          // [experts] events are kept
  int64_t queued_ = 0;
  int64_t taken_ = 0;

  std::unique_ptr<Stream> stream_;  // last: it goes first, and waits
};

}  // namespace moesaic
