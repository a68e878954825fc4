// Stream: work that a device carries out in order, while the host goes on. Work of different
// streams overlaps where the device can do it; events order it.
//
// Made by Device::CreateStream, owned by the caller; the destructor waits for the queued work. The
// device outlives its streams. Thread contract: safe from any thread; the order is that of the
// calls. Host memory and buffers that queued work names must live until it has run.
//
// Errors: no call fails or aborts because the machine fails. A failed copy leaves its destination
// undefined and puts the stream *in error*: copies behind it are skipped, host functions are told,
// and events recorded and streams that wait for those events get the error, because what follows in
// a stream may depend on what came before. So it goes until ClearError, in stream order. The error
// of a copy is kIo; that of a lost device is kUnavailable and cannot be cleared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/base/error.h"
#include "core/device/device_buffer.h"
#include "core/device/event.h"
#include "core/device/graph.h"
#include "core/device/kernel_launch.h"

namespace moesaic {

// Runs on a thread of the device. `error` is the stream's, null when all is well. It must not call
// the device, its streams or its events (take a lock, notify, count), nor block for long: other
// host functions of the device wait behind it. One that throws puts the stream in error
// (kInternal).
using HostFunction = std::function<void(const Error* error)>;

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;

  // Both sides have as many bytes; the device's side is of this stream's device.
  virtual void CopyToDevice(const DeviceSpan& destination, std::span<const std::byte> source) = 0;
  virtual void CopyToHost(std::span<std::byte> destination, const DeviceSpan& source) = 0;
  // Within this stream's device, or between it and a peer (Device::CanReach) in either direction.
  virtual void CopyBetween(const DeviceSpan& destination, const DeviceSpan& source) = 0;

  // Queues a kernel; unless the stream is in error when it comes to it. One that cannot be launched
  // puts the stream in error (kInternal: arguments that no kernel takes are a bug of this program).
  // The kernels are those of the device's kind (kernels/cuda/kernels.h): a CUDA device's, or on an
  // emulated one the same sources compiled for the host, which run on a thread of the device.
  virtual void Launch(const KernelLaunch& launch) = 0;

  // Called once, when all that is queued before has run; what is queued after waits for it.
  virtual void Call(HostFunction function) = 0;

  virtual void Record(Event& event) = 0;
  // What is queued after this waits for the event's latest record, of any stream and device that
  // this one can reach; no record: it does not wait.
  virtual void Wait(const Event& event) = 0;

  // Words by which the host and streams tell each other how far they are, without an event; `word`
  // is in pinned memory (Device::host_pinner), 4-byte aligned. Kernels may write such words too. No
  // order between streams that comes of them is known to the machine, which may run two streams as
  // one where they share what they are fed through: what sets a word may be behind what waits for
  // it in no way (that is for whoever queues both to see to).
  //
  // What is queued after this waits until the word has the value. It ends without it when the
  // stream is in error, or comes to be because its device is lost. Where the machine has no such
  // operation a host function waits, and with it all others of the device.
  virtual void WaitValue(const uint32_t* word, uint32_t value) = 0;
  // The word gets the value when all that is queued before has run, and can be seen by whoever sees
  // it. Skipped, as a copy is, in a stream in error.
  virtual void WriteValue(uint32_t* word, uint32_t value) = 0;

  // From here to EndCapture copies, kernels and operations on words are not queued but recorded,
  // for Replay. Meanwhile nobody else uses the stream, and nothing else is queued on it (CHECK).
  virtual void BeginCapture() = 0;
  // Null: there is no recording, because the stream was in error, host memory of a copy was not
  // pinned (Device::host_pinner) or the machine would not (as with words where a host function has
  // to do it); what was to be recorded was neither run
  // nor queued.
  virtual std::unique_ptr<Graph> EndCapture() = 0;
  // Queues what a stream of this device has recorded.
  virtual void Replay(const Graph& graph) = 0;

  // From here on, in stream order, the stream is well again.
  virtual void ClearError() = 0;

  // Nothing is queued or running.
  virtual bool Idle() const = 0;
  // Waits until nothing is. Returns the error that the stream is in.
  [[nodiscard]] virtual std::optional<Error> Synchronize() = 0;
};

// For callers to whom a failed device is the end of what they do.
inline void ThrowIfFailed(const std::optional<Error>& error) {
  if (error) throw *error;
}

}  // namespace moesaic
