#include "serving/online/engine_devices.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "core/base/logging.h"
#include "core/device/cuda_device.h"
#include "core/device/nccl_collective.h"
#include "serving/model/experts_of_model.h"
#include "serving/online/part_options.h"

namespace moesaic {

MissMode MissModeOf(const EngineOptions& options) {
  const bool alone = options.exact_numerics && KernelsOf(options.devices) != nullptr;
  return alone ? MissMode::kFetch : options.devices.miss;
}

std::vector<Device*> EngineDevices::pointers() const {
  std::vector<Device*> all;
  for (const std::unique_ptr<Device>& device : devices) all.push_back(device.get());
  return all;
}

EngineDevices MakeDevices(const DeviceOptions& options, std::span<const DevicePlan> plans) {
  EngineDevices made;
  if (options.kind == DeviceKind::kCuda) {
    for (size_t d = 0; d < plans.size(); ++d) {
      made.devices.push_back(CreateCudaDevice({.ordinal = static_cast<int>(d),
                                               .capacity_bytes = plans[d].ledger.total_bytes(),
                                               .load_kernels = cuda::LoadKernels}));
    }
    if (options.dense == DenseMode::kSharded) ConnectCudaPeers(made.pointers());
    return made;
  }
  made.emulated = std::make_unique<EmulatedSystem>();
  const std::vector<int> nodes = DeviceNodes(options);
  for (size_t d = 0; d < plans.size(); ++d) {
    EmulatedDeviceOptions device;
    device.name = fmt::format("emulated:{}", d);
    device.capacity_bytes = plans[d].ledger.total_bytes();
    device.numa_node = nodes[d];
    device.host_to_device = options.emulated_link;
    device.device_to_host = options.emulated_link;
    if (d < options.emulated_faults.size()) device.faults = options.emulated_faults[d];
    made.devices.push_back(std::make_unique<EmulatedDevice>(*made.emulated, std::move(device)));
  }
  return made;
}

std::unique_ptr<HostExperts> MakeHome(const EngineOptions& options, const ModelFiles& files,
                                      const ExpertPlacement& placement,
                                      const EngineDevices& devices) {
  auto home = std::make_unique<HostExperts>(*files.experts, GridOf(files.config), placement,
                                            devices.pointers(), LoaderOptionsOf(options, 0));
  if (const std::optional<Error> why = home->why_not_pinned()) LogInfo("{}", why->what());
  return home;
}

void StartFromProfiles(const EngineOptions& options, const ExpertLayout& layout,
                       DeviceExpertsOptions& experts) {
  const std::vector<DeviceProfile>& profiles = options.devices.profiles;
  if (profiles.size() != experts.slots.size()) return;
  const auto expert_ns = [&](double bytes_per_s) {
    return 1e9 * static_cast<double>(layout.blob_bytes) / bytes_per_s;
  };
  for (const DeviceProfile& profile : profiles) {
    const double rate = profile.copy_bytes_per_s(kDefaultPacketBytes);
    experts.copy_ns.push_back(rate > 0 ? std::llround(expert_ns(rate)) : 0);
  }
  const std::string weights = WeightTypeName(ChooseWeightType(options));
  for (const ExpertRate& rate : profiles.front().on_host) {
    if (rate.weights != weights || rate.loaded.value <= 0) continue;
    experts.host_ns.emplace_back(rate.rows, expert_ns(rate.loaded.value));
  }
}

DeviceOperators MakeOperators(const EngineOptions& options, const EngineDevices& devices,
                              const ExpertLayout& layout, const ModelConfig& config) {
  DeviceOperators operators;
  const cuda::Kernels* const kernels = KernelsOf(options.devices);
  if (kernels == nullptr) return operators;
  for (const std::unique_ptr<Device>& device : devices.devices) {
    operators.push_back(std::make_unique<DeviceOperator>(*device, *kernels, layout, config,
                                                         options.max_num_batched_tokens));
  }
  return operators;
}

std::unique_ptr<DeviceDense> MakeDense(const EngineOptions& options, const EngineDevices& devices,
                                       int count, const ModelConfig& config,
                                       const ModelWeights& weights, const ModelLimits& limits) {
  if (count == 0) return nullptr;
  const std::vector<Device*> all = devices.pointers();
  return std::make_unique<DeviceDense>(
      std::span(all).first(static_cast<size_t>(count)), *KernelsOf(options.devices), config,
      ChooseWeightType(options), weights, limits,
      DeviceDenseOptions{.make_collective =
                             options.devices.nccl ? MakeNcclCollective : MakePeerCollective});
}

}  // namespace moesaic
