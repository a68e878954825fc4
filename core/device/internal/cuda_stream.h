// cuda::CudaStream, cuda::CudaEvent: the handles that a CUDA device makes. Internal to core/device
// (*_cuda.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <span>

#include "core/base/mutex.h"
#include "core/device/cuda_device.h"
#include "core/device/device.h"
#include "core/device/internal/cuda_core.h"

namespace moesaic::cuda {

// One record of an event: a CUDA event of its own, so that an event can be recorded by streams of
// any device and asked about while it is recorded anew.
class Mark {
 public:
  Mark(Core& core, cudaEvent_t event, ErrorCausesPtr causes, std::optional<Error> error)
      : core_(core), event_(event), causes_(std::move(causes)), error_(std::move(error)) {}
  ~Mark() { core_.GiveEvent(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  Core& core() const { return core_; }
  cudaEvent_t event() const { return event_; }  // null when it could not be recorded
  const ErrorCausesPtr& causes() const { return causes_; }
  Event::State Query() const;
  std::optional<Error> Synchronize() const;

 private:
  std::optional<Error> ErrorWhenDone() const;

  Core& core_;
  const cudaEvent_t event_;
  const ErrorCausesPtr causes_;
  const std::optional<Error> error_;  // of recording
};

class CudaEvent : public Event {
 public:
  State Query() const override;
  [[nodiscard]] std::optional<Error> Synchronize() override;

  std::shared_ptr<const Mark> latest() const EXCLUDES(mutex_);  // null: never recorded
  void Set(std::shared_ptr<const Mark> mark) EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const Mark> latest_ GUARDED_BY(mutex_);
};

class CudaGraph : public Graph {
 public:
  CudaGraph(Core& core, cudaGraphExec_t exec) : core_(core), exec_(exec) {}
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  const Core& core() const { return core_; }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  Core& core_;
  const cudaGraphExec_t exec_;
};

class CudaStream : public Stream {
 public:
  CudaStream(Device& device, Core& core);
  ~CudaStream() override;

  Device& device() override { return device_; }
  void CopyToDevice(const DeviceSpan& destination, std::span<const std::byte> source) override;
  void CopyToHost(std::span<std::byte> destination, const DeviceSpan& source) override;
  void CopyBetween(const DeviceSpan& destination, const DeviceSpan& source) override;
  void Launch(const KernelLaunch& launch) override EXCLUDES(mutex_);
  void Call(HostFunction function) override;
  void Record(Event& event) override;
  void Wait(const Event& event) override;
  void WaitValue(const uint32_t* word, uint32_t value) override;
  void WriteValue(uint32_t* word, uint32_t value) override;
  void BeginCapture() override;
  std::unique_ptr<Graph> EndCapture() override;
  void Replay(const Graph& graph) override;
  void ClearError() override;
  bool Idle() const override;
  [[nodiscard]] std::optional<Error> Synchronize() override;

 private:
  // Copies from and to memory that the driver does not know make the host wait, so they go through
  // pinned memory of the stream, in pieces of this size.
  static constexpr uint64_t kStagingBytes = uint64_t{256} << 10;

  // kSpoilt: the runtime records, but something was left out. kRefused: it does not record.
  enum class Capture : unsigned char { kNone, kRecording, kSpoilt, kRefused };

  bool InError() const REQUIRES(mutex_) { return errors_.known() != nullptr || core_.lost(); }
  // Whether what may be recorded is neither queued nor recorded.
  bool Skips() const REQUIRES(mutex_) {
    return capture_ == Capture::kSpoilt || capture_ == Capture::kRefused || InError();
  }
  // Whether there is a capture, which what the caller has met ends: a call that failed, or a copy
  // that goes through the host.
  bool Spoils() REQUIRES(mutex_) {
    if (capture_ == Capture::kRecording) capture_ = Capture::kSpoilt;
    return capture_ == Capture::kSpoilt;
  }
  void Note(cudaError_t code, const char* call) REQUIRES(mutex_);
  bool Fetch(std::byte* to, std::span<const std::byte> from) REQUIRES(mutex_);
  cudaGraphExec_t Instantiate(cudaGraph_t graph) REQUIRES(mutex_);
  void CallLocked(HostFunction function) REQUIRES(mutex_);

  Device& device_;
  Core& core_;
  cudaStream_t handle_ = nullptr;
  std::byte* staging_ = nullptr;  // written and read in stream order only
  mutable Mutex mutex_;
  StreamErrors errors_ GUARDED_BY(mutex_);
  Capture capture_ GUARDED_BY(mutex_) = Capture::kNone;
};

}  // namespace moesaic::cuda
