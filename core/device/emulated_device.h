// EmulatedDevice: a device whose memory is host memory and whose links are slow on purpose. Copies
// really copy the bytes and end at a deadline; everything above this room runs on it as on a GPU,
// on any machine, with as many devices as are wanted and with faults on demand.
//
// The model of a link: a copy of n bytes takes latency + n / rate. A link moves one copy at a time,
// in the order in which they become ready; the next one starts at the *modelled* end of the one
// before, so that late wake-ups of threads do not add up. Where copying the bytes takes longer than
// the model says, that is how long it takes. Nobody busy-waits. A device has an engine (a link and
// a thread) for each of: from the host, to the host, and to devices (itself and its peers, on the
// side of the source); one thread more calls host functions, and one runs kernels. The numbers come
// from the caller, who has them from a HardwareProfile; no cost formula is called here
// (architecture, section 1).
//
// Time: an EmulatedSystem holds the clock of the devices of one emulated machine. With a
// VirtualClock time moves only in AdvanceNs, and in a Synchronize or a destructor that waits: it
// then goes from one end of a copy to the next, and only when all threads have done what there was
// to do at that time (host functions included: time stands still while one runs). One thread that
// drives several streams thus sees the same times in every run, unless two copies become ready for
// one engine at the same instant.
//
// Thread contract: safe from any thread. The system outlives its devices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/device/device.h"
#include "core/device/memory_arena.h"

namespace moesaic {

namespace emulated {
class Core;
class EmulatedStream;
struct DeviceState;
}  // namespace emulated

struct EmulatedLink {
  double bytes_per_s = 0;  // 0: as fast as the bytes can be copied
  double latency_us = 0;   // of each copy; the link is taken meanwhile
};

enum class EmulatedEngine : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };
constexpr int kEmulatedEngines = 3;

// Faults to inject. Copies and allocations of a device are numbered from 1 when the faults are set,
// copies in the order in which they are queued.
struct EmulatedFaults {
  struct Stall {
    uint64_t copy = 0;
    int64_t stall_us = 0;  // on top of the copy's modelled time
  };
  std::vector<uint64_t> failing_copies = {};
  double copy_failure_probability = 0;  // of each copy, decided by the seed and its number
  uint64_t seed = 0;
  std::vector<Stall> stalls = {};
  std::optional<uint64_t> granted_allocations = {};  // those after so many are refused
  uint64_t lost_at_copy = 0;  // the device is lost when this one would start; 0: never
};

struct EmulatedDeviceOptions {
  std::string name = "emulated:0";
  uint64_t capacity_bytes = 0;
  int numa_node = -1;  // where the device's memory is taken from, when the machine has such a node
  EmulatedLink host_to_device;
  EmulatedLink device_to_host;
  EmulatedLink peer;   // to another device
  EmulatedLink local;  // within the device
  EmulatedFaults faults;
};

// What an engine has done; monotone.
struct EmulatedEngineCounters {
  uint64_t copies = 0;
  uint64_t failed = 0;
  uint64_t bytes = 0;   // of the copies that did not fail
  int64_t busy_ns = 0;  // link time, stalls included
};

class EmulatedSystem {
 public:
  EmulatedSystem();                                      // the steady clock
  explicit EmulatedSystem(VirtualClock* virtual_clock);  // which outlives it
  ~EmulatedSystem();
  EmulatedSystem(const EmulatedSystem&) = delete;
  EmulatedSystem& operator=(const EmulatedSystem&) = delete;

  const Clock& clock() const;
  // With a virtual clock only. Returns when all that happens up to the new time has happened. Only
  // this may move the clock while there are devices.
  void AdvanceNs(int64_t delta_ns);
  void AdvanceUs(int64_t delta_us) { AdvanceNs(delta_us * 1000); }

 private:
  friend class EmulatedDevice;
  std::unique_ptr<emulated::Core> core_;
};

class EmulatedDevice : public Device {
 public:
  // Throws Error(kResourceExhausted) when the machine has not got the memory.
  EmulatedDevice(EmulatedSystem& system, EmulatedDeviceOptions options);
  ~EmulatedDevice() override;

  const std::string& name() const override { return options_.name; }
  DeviceKind kind() const override { return DeviceKind::kEmulated; }
  int numa_node() const override { return options_.numa_node; }
  uint64_t capacity_bytes() const override { return arena_.capacity_bytes(); }
  uint64_t used_bytes() const override { return arena_.used_bytes(); }
  uint64_t largest_free_bytes() const override { return arena_.largest_free_bytes(); }
  std::optional<DeviceBuffer> Allocate(uint64_t bytes) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Event> CreateEvent() override;
  HostPinner& host_pinner() override { return pinner_; }
  bool KernelsReach(std::span<const std::byte> /*host_memory*/) const override { return true; }
  bool CanReach(const Device& other) const override;  // devices of the same system
  std::optional<Error> lost() const override;

  // Replaces the faults and numbers copies and allocations anew; copies that are queued keep
  // theirs.
  void SetFaults(EmulatedFaults faults);
  // As if it had fallen off the bus: what moves and what is queued fails (kUnavailable), for good.
  void Lose();

  EmulatedEngineCounters counters(EmulatedEngine engine) const;

 private:
  friend class emulated::EmulatedStream;

  const EmulatedDeviceOptions options_;  // its faults: the first ones
  emulated::Core& core_;
  AlignedBuffer memory_;
  MemoryArena arena_;
  MlockPinner pinner_;
  std::unique_ptr<emulated::DeviceState> state_;
};

}  // namespace moesaic
