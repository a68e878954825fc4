#include "core/device/emulated_device.h"

#include <utility>

#include "core/device/emulated_core.h"
#include "core/device/emulated_stream.h"
#include "core/device/numa_memory.h"

namespace moesaic {
namespace {

std::unique_ptr<emulated::DeviceState> MakeState(const EmulatedDeviceOptions& options) {
  auto state = std::make_unique<emulated::DeviceState>();
  state->name = options.name;
  state->links = {options.host_to_device, options.device_to_host, options.peer};
  state->local_link = options.local;
  state->faults = options.faults;
  return state;
}

}  // namespace

EmulatedSystem::EmulatedSystem() : core_(std::make_unique<emulated::Core>(nullptr)) {}

EmulatedSystem::EmulatedSystem(VirtualClock* virtual_clock)
    : core_(std::make_unique<emulated::Core>(virtual_clock)) {}

EmulatedSystem::~EmulatedSystem() = default;

const Clock& EmulatedSystem::clock() const { return core_->clock(); }

void EmulatedSystem::AdvanceNs(int64_t delta_ns) { core_->AdvanceNs(delta_ns); }

EmulatedDevice::EmulatedDevice(EmulatedSystem& system, EmulatedDeviceOptions options)
    : options_(std::move(options)),
      core_(*system.core_),
      memory_(options_.capacity_bytes),
      arena_(memory_.data(), options_.capacity_bytes, kAlignment),
      state_(MakeState(options_)) {
  PreferNumaNode(memory_.span(), options_.numa_node);
  core_.StartDevice(*state_);
}

EmulatedDevice::~EmulatedDevice() { core_.StopDevice(*state_); }

std::optional<DeviceBuffer> EmulatedDevice::Allocate(uint64_t bytes) {
  std::optional<ArenaBlock> block = arena_.Allocate(bytes);
  if (!block || !core_.GrantAllocation(*state_)) return std::nullopt;
  return DeviceBuffer(this, std::move(*block));
}

std::unique_ptr<Stream> EmulatedDevice::CreateStream() {
  return std::make_unique<emulated::EmulatedStream>(core_, *this, *state_);
}

std::unique_ptr<Event> EmulatedDevice::CreateEvent() {
  return std::make_unique<emulated::EmulatedEvent>(core_);
}

bool EmulatedDevice::CanReach(const Device& other) const {
  const auto* emulated = dynamic_cast<const EmulatedDevice*>(&other);
  return emulated != nullptr && &emulated->core_ == &core_;
}

std::optional<Error> EmulatedDevice::lost() const { return core_.Lost(*state_); }

void EmulatedDevice::SetFaults(EmulatedFaults faults) {
  core_.SetFaults(*state_, std::move(faults));
}

void EmulatedDevice::Lose() { core_.Lose(*state_); }

EmulatedEngineCounters EmulatedDevice::counters(EmulatedEngine engine) const {
  return core_.Counters(*state_, engine);
}

}  // namespace moesaic
