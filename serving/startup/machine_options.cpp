#include "serving/startup/machine_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "core/config/model_config.h"
#include "core/device/cuda_device.h"

namespace moesaic {
namespace {

// A device without an expert of a layer would have nothing to do.
void UseDevicesThatHaveExperts(EngineOptions& options) {
  if (options.devices.count < 2) return;
  const int64_t experts = std::max<int64_t>(1, LoadModelConfig(options.model_dir).num_experts());
  if (options.devices.count <= experts) return;
  LogWarn("--devices {}: the model has {} experts in a layer, so {} devices are used",
          options.devices.count, experts, experts);
  options.devices.count = static_cast<int>(experts);
}

// An instruction set that is forced is left alone.
void ChooseKernels(const Machine& machine, EngineOptions& options) {
  if (machine.isa_forced) return;
  if (machine.profile) {
    options.kernel_choices = machine.profile->kernels;
  } else {
    LogDebug("kernels are chosen by default: {}", machine.why_no_profile);
  }
}

// What the profile says of the GPUs, when it knows all of them.
void ChooseDeviceRates(const Machine& machine, DeviceOptions& devices) {
  if (devices.kind != DeviceKind::kCuda || devices.count == 0) return;
  const std::vector<CudaDeviceInfo> infos = FindCudaDevices().devices;
  const auto wanted = static_cast<size_t>(devices.count);
  std::vector<DeviceProfile> known;
  for (size_t d = 0; machine.profile && d < infos.size() && known.size() < wanted; ++d) {
    const DeviceProfile* const device =
        machine.profile->DeviceNamed(fmt::format("cuda:{}", infos[d].ordinal), infos[d].name);
    if (device != nullptr) known.push_back(*device);
  }
  if (known.size() == wanted) {
    devices.profiles = std::move(known);
  } else {
    LogDebug("rates of links and experts are measured while serving only: {}",
             machine.profile ? "the profile does not know these GPUs" : machine.why_no_profile);
  }
}

// What the checkpoint has, where that is a type of its own.
void ChooseDtype(EngineOptions& options) {
  if (options.dtype && *options.dtype != WeightType::kMxfp4) return;
  const ModelConfig config = LoadModelConfig(options.model_dir);
  const bool mxfp4 = config.tensors.HasMxfp4Experts();
  if (mxfp4) options.dtype = WeightType::kMxfp4;
  if (mxfp4 || !options.dtype) return;
  Fail(ErrorKind::kInvalidArgument,
       "--dtype mxfp4: the experts of {} are not in mxfp4; give another type, or leave it at auto",
       options.model_dir.string());
}

}  // namespace

uint64_t MemoryLimitBytes(const MachineShare& share, const Topology& topology) {
  const uint64_t usable_bytes = topology.usable_memory_bytes();
  return share.memory.is_auto() ? usable_bytes : share.memory.BytesOf(usable_bytes);
}

EngineOptions OptionsOnMachine(const EngineOptions& asked, const Machine& machine) {
  const Topology& topology = machine.topology;
  EngineOptions options = asked;
  options.model_dir = ResolveModelPath(options.model);
  ChooseDtype(options);
  MachineShare& share = options.machine;
  options.machine_memory_bytes = MemoryLimitBytes(share, topology);
  options.threads = share.threads > 0 ? share.threads : topology.default_threads();
  share.numa = ChooseNumaPolicy(share.numa, topology);
  options.thread_layout =
      topology.thread_layout(share.pin_threads, share.numa == NumaPolicy::kSlice);
  DeviceOptions& devices = options.devices;
  if (devices.kind == DeviceKind::kCuda) devices.count = std::max(devices.count, 1);
  devices.numa_nodes.clear();
  if (topology.nodes.size() > 1) {
    for (const NumaNode& node : topology.nodes) devices.numa_nodes.push_back(node.id);
  }
  UseDevicesThatHaveExperts(options);
  ChooseKernels(machine, options);
  ChooseDeviceRates(machine, devices);
  return options;
}

}  // namespace moesaic
