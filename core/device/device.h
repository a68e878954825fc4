// Device: a place with memory of its own that is reached by a link: a GPU, or an emulated one that
// behaves like it (core/device/emulated_device.h). Everything above this room works with these
// interfaces; no header here knows CUDA.
//
// Owned by whoever sets up the engine; outlives its buffers, streams and events (CHECK where it can
// be seen). Thread contract: safe from any thread.
//
// Its memory is an arena of a given budget, taken when the device is made: what is handed out is
// accounted, and running out is an answer, not an abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/named.h"
#include "core/device/device_buffer.h"
#include "core/device/event.h"
#include "core/device/host_pinner.h"
#include "core/device/stream.h"

namespace moesaic {

enum class DeviceKind : uint8_t { kEmulated, kCuda };

inline constexpr Named<DeviceKind> kDeviceKinds[] = {{"emulated", DeviceKind::kEmulated},
                                                     {"cuda", DeviceKind::kCuda}};
constexpr const char* DeviceKindName(DeviceKind kind) { return NameOf(kDeviceKinds, kind); }

class Device {
 public:
  // Of every buffer: what coalesced loads and tensor maps of GPUs want.
  static constexpr uint64_t kAlignment = 256;

  virtual ~Device() = default;
  virtual const std::string& name() const = 0;  // "cuda:0", for messages and metrics
  virtual DeviceKind kind() const = 0;
  virtual int numa_node() const = 0;  // whose memory its link reaches fastest; -1: not known

  // The ledger, in bytes rounded up to kAlignment per buffer. used + free == capacity.
  virtual uint64_t capacity_bytes() const = 0;
  virtual uint64_t used_bytes() const = 0;
  virtual uint64_t largest_free_bytes() const = 0;  // the largest buffer that can be had now
  uint64_t free_bytes() const { return capacity_bytes() - used_bytes(); }

  // Not zeroed. nullopt: out of memory, or the device is lost. No bytes: a buffer without memory.
  virtual std::optional<DeviceBuffer> Allocate(uint64_t bytes) = 0;

  virtual std::unique_ptr<Stream> CreateStream() = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;
  virtual HostPinner& host_pinner() = 0;
  // Kernels of this device read and write this memory of the host, of a PinnedHostPool, where it
  // is.
  virtual bool KernelsReach(std::span<const std::byte> host_memory) const = 0;

  // Whether streams of this device can copy between the two and wait for the other's events.
  // A device reaches itself.
  virtual bool CanReach(const Device& other) const = 0;

  // Whether a stream takes long to call the host (Stream::Call), so that who waits for one thing
  // after another asks their events instead.
  virtual bool calls_are_slow() const { return false; }

  // Why nothing works any more; nullopt while it does.
  virtual std::optional<Error> lost() const = 0;
};

// A buffer of the device. Throws what the device was lost by, or Error(kResourceExhausted) that
// names the device, the size, what it is for and, after that, `advice`.
DeviceBuffer AllocateOrThrow(Device& device, uint64_t bytes, std::string_view what,
                             std::string_view advice = "");

}  // namespace moesaic
