// EmulatedStream, EmulatedEvent: the handles that an EmulatedDevice makes. Internal to core/device;
// all state is Core's (emulated_core.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/device.h"
#include "core/device/emulated_core.h"
#include "core/device/emulated_device.h"

namespace moesaic::emulated {

class EmulatedEvent : public Event {
 public:
  explicit EmulatedEvent(Core& core) : core_(core) {}

  State Query() const override;
  [[nodiscard]] std::optional<Error> Synchronize() override;

  const Core& core() const { return core_; }
  std::shared_ptr<Mark> latest() const EXCLUDES(mutex_);  // null: never recorded
  std::shared_ptr<Mark> Renew() EXCLUDES(mutex_);

 private:
  Core& core_;
  mutable Mutex mutex_;
  std::shared_ptr<Mark> latest_ GUARDED_BY(mutex_);
};

class EmulatedGraph : public Graph {
 public:
  EmulatedGraph(EmulatedDevice& device, std::vector<Op> ops)
      : device_(device), ops_(std::move(ops)) {}

  EmulatedDevice& device() const { return device_; }
  const std::vector<Op>& ops() const { return ops_; }

 private:
  EmulatedDevice& device_;
  const std::vector<Op> ops_;
};

class EmulatedStream : public Stream {
 public:
  EmulatedStream(Core& core, EmulatedDevice& device, DeviceState& state);
  ~EmulatedStream() override;

  Device& device() override { return device_; }
  void CopyToDevice(const DeviceSpan& destination, std::span<const std::byte> source) override;
  void CopyToHost(std::span<std::byte> destination, const DeviceSpan& source) override;
  void CopyBetween(const DeviceSpan& destination, const DeviceSpan& source) override;
  void Launch(const KernelLaunch& launch) override;
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
  DeviceState& StateOf(const DeviceSpan& span) const;
  void QueueOrRecord(Op op);
  void Queue(Op op);

  Core& core_;
  EmulatedDevice& device_;
  mutable StreamState state_;  // guarded by the core's lock
  // Of the capture, in which one thread uses the stream.
  bool capturing_ = false;
  std::vector<Op> captured_;
};

}  // namespace moesaic::emulated
