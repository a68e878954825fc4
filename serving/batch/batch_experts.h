// BatchExperts: where a batch engine's experts are and compute: streamed from disk into host
// memory, or, with devices, from host memory into each device's slots over its link, where the
// device's kernels (kernels/cuda/kernels.h) compute them or, of an emulated device without
// kernels, its threads.
//
// An emulated device without kernels has threads of its own and computes in its memory; dense
// weights it reads where they are. The first one also runs the dense modules, between which
// queries and attention outputs are copied over its link, on streams of their own: a stream's next
// copy gets in line when the one before has ended, so they wait behind one packet of weights at
// most. With kernels the dense modules are a SplitDense's, if there is one, and it is the same.
//
// Owned by the engine, used by its thread; outlives its Model and PassRunner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/device/device_buffer.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/host_experts.h"
#include "serving/batch/batch_plan.h"
#include "serving/batch/device_place.h"
#include "serving/batch/pass_runner.h"
#include "serving/batch/streaming_experts.h"
#include "serving/batch/timeline.h"
#include "serving/model/expert_runner.h"
#include "serving/model/split_dense.h"
#include "serving/online/engine_devices.h"
#include "serving/online/part_options.h"

namespace moesaic {

class BatchExperts {
 public:
  // `pool` computes where there is no device. All arguments but options and plan outlive it.
  BatchExperts(const EngineOptions& options, const BatchPlan& plan, const ModelFiles& files,
               ThreadPool& pool, Timeline& timeline);

  // For the Model, once.
  ExpertPlaces TakePlaces();
  std::span<StreamingExperts* const> streams() const { return streams_; }
  // The dense part, for the Model, which outlives the use of this: on the first device, by kernels,
  // but for its mixers, if PlanBatchDevices has planned that; or the host's, whose modules are to
  // compute in the memory of the first device that has threads. Of loaded weights.
  std::unique_ptr<DensePart> MakeDense(const EngineOptions& options, const BatchPlan& plan,
                                       const ModelConfig& config, ModelWeights weights,
                                       const CpuKernels& kernels);
  const DenseDevice* dense_device() const { return dense_ ? &*dense_ : nullptr; }  // null: none

  // After a pass that failed: whether it failed because a device was lost. From then on its threads
  // compute what was its own in host memory, and the pass can be run again.
  bool NoteLostDevices();

  // Whether, since the last call, the device of the dense part has failed. Another pass may
  // succeed.
  bool TakeDenseFailure() { return split_ != nullptr && split_->TakeFailure(); }

  void StopPrefetching();
  int64_t slots() const;
  int64_t resident() const;
  std::vector<DeviceStatus> devices() const;  // empty: none
  void Links(std::vector<ReaderLink>& out) const { streams_.front()->Links(out); }
  Device& device(int number) { return *devices_.devices[static_cast<size_t>(number)]; }

 private:
  struct Place {
    std::unique_ptr<ThreadPool> pool;  // null: the engine's
    DeviceBuffer memory;               // before the experts, which copy into it
    std::unique_ptr<StreamingExperts> experts;
    std::unique_ptr<DevicePlace> device;  // null without devices
  };

  void MakeDevicePlaces(const EngineOptions& options, const BatchPlan& plan,
                        const ModelFiles& files, StreamingOptions streaming);
  void MakeThreadsDevice(const BatchPlan& plan, const ModelConfig& config);
  void MakeDenseDevice(DeviceSpan qkv, DeviceSpan attention);

  ThreadPool& pool_;
  EngineDevices devices_;
  std::unique_ptr<ExpertPlacement> placement_;  // null without devices
  std::unique_ptr<HostExperts> home_;
  std::vector<Place> places_;
  std::vector<StreamingExperts*> streams_;
  DeviceOperators operators_;  // [devices] that compute, until they are taken
  DeviceBuffer qkv_;
  DeviceBuffer attention_;
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Stream> out_;
  std::optional<DenseDevice> dense_;
  HostDense* host_ = nullptr;    // whose modules compute in qkv_ and attention_
  SplitDense* split_ = nullptr;  // whose device is the first
};

// Packets that are queued on a device's link: the next one starts when one ends, without a thread
// between.
constexpr int kLinkDepth = 8;

// Threads of each of so many devices.
int DeviceThreads(const EngineOptions& options);

}  // namespace moesaic
