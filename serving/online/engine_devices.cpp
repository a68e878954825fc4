#include "serving/online/engine_devices.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

// An emulated device stands in for one that is too small for its experts.
constexpr const char* kAutoEmulatedMemory = "25%";

std::vector<int> NodesOf(const DeviceOptions& options) {
  std::vector<int> nodes;
  for (int d = 0; d < options.count; ++d) {
    const auto turns = options.numa_nodes.size();
    nodes.push_back(turns == 0 ? -1 : options.numa_nodes[static_cast<size_t>(d) % turns]);
  }
  return nodes;
}

void CheckOptions(const EngineOptions& options, const ModelConfig& config) {
  const DeviceOptions& devices = options.devices;
  if (devices.kind == DeviceKind::kCuda) {
    Fail(ErrorKind::kUnsupported,
         "--device-kind cuda: this build has no CUDA; use emulated, or --devices 0");
  }
  if (devices.count > std::min<int64_t>(config.num_experts, kMaxLinks)) {
    Fail(ErrorKind::kInvalidArgument,
         "--devices: {} are more than this program can use with {} experts in a layer; give at "
         "most {}",
         devices.count, config.num_experts, std::min<int64_t>(config.num_experts, kMaxLinks));
  }
  if (options.expert_memory != "auto" && options.expert_memory != "100%") {
    Fail(ErrorKind::kInvalidArgument,
         "--expert-memory {}: with --devices all experts live in host memory; leave it at auto and "
         "give --device-memory",
         options.expert_memory);
  }
}

}  // namespace

ExpertPlacement PlaceExperts(const DeviceOptions& options, const ModelConfig& config) {
  const ExpertGrid grid(static_cast<int>(config.num_layers), static_cast<int>(config.num_experts));
  return ExpertPlacement(grid, NodesOf(options));
}

std::vector<DevicePlan> PlanDevices(const EngineOptions& options, const ModelConfig& config,
                                    uint64_t slot_bytes) {
  CheckOptions(options, config);
  const ExpertPlacement placement = PlaceExperts(options.devices, config);
  const std::string& memory =
      options.devices.memory == "auto" ? kAutoEmulatedMemory : options.devices.memory;
  std::vector<DevicePlan> plans;
  for (int d = 0; d < placement.num_devices(); ++d) {
    DevicePlan plan;
    for (const ExpertIndex expert : placement.experts(d)) {
      const auto layer = static_cast<size_t>(expert / config.num_experts);
      plan.experts += config.layer_is_sparse[layer] ? 1 : 0;
    }
    const uint64_t bytes = ParseBytesOrPercent(
        memory, static_cast<uint64_t>(plan.experts) * slot_bytes, "--device-memory");
    plan.slots = std::min<int64_t>(
        plan.experts, static_cast<int64_t>(std::min<uint64_t>(bytes / slot_bytes, INT32_MAX)));
    if (plan.slots < 1) {
      Fail(ErrorKind::kResourceExhausted,
           "--device-memory: {} hold no expert; one takes {} and device {} has {} of them",
           FormatBytes(bytes), FormatBytes(slot_bytes), d, plan.experts);
    }
    plans.push_back(plan);
  }
  return plans;
}

std::vector<Device*> EngineDevices::pointers() const {
  std::vector<Device*> all;
  for (const std::unique_ptr<Device>& device : devices) all.push_back(device.get());
  return all;
}

EngineDevices MakeDevices(const DeviceOptions& options, const EnginePlan& plan) {
  EngineDevices made;
  made.emulated = std::make_unique<EmulatedSystem>();
  const std::vector<int> nodes = NodesOf(options);
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    EmulatedDeviceOptions device;
    device.name = fmt::format("emulated:{}", d);
    device.capacity_bytes = static_cast<uint64_t>(plan.devices[d].slots) * plan.slot_bytes;
    device.numa_node = nodes[d];
    device.host_to_device = options.emulated_link;
    device.device_to_host = options.emulated_link;
    if (d < options.emulated_faults.size()) device.faults = options.emulated_faults[d];
    made.devices.push_back(std::make_unique<EmulatedDevice>(*made.emulated, std::move(device)));
  }
  return made;
}

}  // namespace moesaic
