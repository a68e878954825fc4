// StepExperts: the routed experts of decode steps that run on a device by themselves, as one graph
// (device_dense.h). Each sparse layer looks up in the slot table (cache/slot_table.h) which of
// its experts are there, computes those, tells the host what it routed and found missing, and waits
// for the host to have the rest computed: by a word of host memory, which the look-up itself sets
// when nothing is missing, so that such a layer waits for nobody.
//
// The host follows: AwaitRouting of each sparse layer in turn and, where something was missing,
// Answer. It may be several layers behind a device that lacks nothing, so that what it is told has
// a place of its own for each layer.
//
// Owned by the DeviceDense, used by its thread. Device and table outlive it. No allocation after
// construction but what streams take.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cache/slot_table.h"
#include "core/config/model_config.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "core/io/expert_layout.h"
#include "kernels/cuda/kernels.h"
#include "serving/model/forward_batch.h"

namespace moesaic {

class DeviceOperator;

class StepExperts {
 public:
  // Rows of a step at most: a layer's routing and residual stream are kept on the host for each.
  static constexpr int64_t kMostRows = 32;
  static int64_t MostRows(const ModelLimits& limits);

  // Bytes that it takes of the device, and of the host (pinned).
  static uint64_t DeviceBytes(const ModelConfig& config, const ModelLimits& limits);
  static uint64_t HostBytes(const ModelConfig& config, const ModelLimits& limits);

  StepExperts(Device& device, const cuda::Kernels& kernels, const ModelConfig& config,
              const ExpertLayout& layout, const ModelLimits& limits, SlotTable& table);
  // Waits for what is queued.
  ~StepExperts();

  // Whether kernels reach what they are to share with the host; if not, nothing may be queued.
  bool usable() const { return usable_; }

  // --- what the graph has of a sparse layer, in this order
  struct LayerRows {
    int64_t layer = 0;
    int64_t rows = 0;                    // with those that fill up
    const int32_t* real_rows = nullptr;  // how many do not, on the device
    DeviceSpan routing;                  // [rows, top_k] int32, then [rows, top_k] f32
    DeviceSpan normed;                   // [rows, hidden] f32
    DeviceSpan hidden;                   // [rows, hidden] f32
    const uint16_t* x = nullptr;         // [rows, ActivationStride(hidden)] bf16
  };
  // Who is here; the host is told.
  void QueueLookUp(Stream& stream, const LayerRows& rows);
  // The products of those.
  void QueueProducts(Stream& stream, const LayerRows& rows);
  // Waits for the others, whose outputs are rows of others.out(), and adds all to `hidden`, in slot
  // order.
  void QueueSum(Stream& stream, const LayerRows& rows, const DeviceOperator& others);

  // --- the host
  void BeginStep();
  void Launched(Stream& stream);  // behind the graph

  struct Routed {
    const int32_t* experts = nullptr;  // [rows, top_k]
    const float* weights = nullptr;    // [rows, top_k]
    const float* normed = nullptr;     // [rows, hidden], valid until Answer: where any is missing
    const float* hidden = nullptr;     // [rows, hidden]
    std::span<const int32_t> missed;   // experts of the layer that are not looked after
  };
  // Throws Error when the device fails. rows: of the graph.
  Routed AwaitRouting(int64_t layer, int64_t rows);
  // Whether the products of the layer are done: nobody reads the experts any more that were found.
  bool ProductsDone(int64_t layer) const;
  void AwaitProducts(int64_t layer);
  // The missing experts of the layer are computed when what `experts` has queued is; the last
  // `others` of their rows are sent from experts.host_out(). places: [pairs] row of experts.out()
  // of each pair; kComputed: its expert was not missing.
  static constexpr int32_t kComputed = -2;
  void Answer(int64_t layer, const DeviceOperator& experts, int64_t first_other, int64_t others,
              std::span<const int32_t> places);

  // Waits for the end of the graph. Throws as AwaitRouting.
  void AwaitEnd();
  // Instead: lets the graph run to its end, whatever it computes.
  void Abandon();
  // The graph has ended.
  void EndStep();

 private:
  struct Sizes;

  void Await(const uint32_t* word);
  // The first `bytes` of the layer's part.
  std::span<std::byte> OfLayer(const HostBuffer& buffer, int64_t layer, uint64_t bytes) const;

  const cuda::Kernels& kernels_;
  const ModelConfig& config_;
  const ExpertLayout& layout_;
  const cuda::Weights type_;
  SlotTable& table_;

  // Of the device.
  DeviceBuffer weights_;     // [3][experts] addresses of gate, up, down
  DeviceBuffer offsets_;     // [experts + 1]
  DeviceBuffer token_rows_;  // [pairs]
  DeviceBuffer slot_rows_;   // [pairs]
  DeviceBuffer places_;      // [pairs]
  DeviceBuffer gate_;        // [pairs, intermediate] f32
  DeviceBuffer up_;          // likewise
  DeviceBuffer h_;           // [pairs, ActivationStride(intermediate)] bf16
  DeviceBuffer out_;         // [pairs, hidden] f32, by pair
  // Of the host, pinned.
  std::unique_ptr<PinnedHostPool> pool_;
  HostBuffer host_words_;    // [3][layers]: routed, computed, go
  HostBuffer host_missed_;   // [layers][1 + experts] how many, and which
  HostBuffer host_routing_;  // [layers][2][pairs]
  HostBuffer host_hidden_;   // [layers][rows, hidden]
  HostBuffer host_normed_;   // [rows, hidden], of the layer that waits
  HostBuffer host_places_;   // [pairs]
  uint32_t* routed_ = nullptr;
  uint32_t* computed_ = nullptr;
  uint32_t* go_ = nullptr;
  bool usable_ = false;

  std::unique_ptr<Event> ended_;     // the graph has
  std::unique_ptr<Event> answered_;  // what was sent has arrived
  std::unique_ptr<Stream> answers_;  // last: it goes first, and waits
};

}  // namespace moesaic
