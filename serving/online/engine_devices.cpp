#include "serving/online/engine_devices.h"

#include <cmath>
#include <string>
#include <utility>

#include "core/base/logging.h"
#include "core/device/nccl_collective.h"
#include "serving/model/experts_of_model.h"
#include "serving/online/device_backend.h"
#include "serving/online/part_options.h"

namespace moesaic {

MissMode MissModeOf(const EngineOptions& options) {
  const bool alone = options.exact_numerics && KernelsOf(options.devices) != nullptr;
  return alone ? MissMode::kFetch : options.devices.miss;
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
  const auto expert_ns = [&](double bytes_per_s) {
    return 1e9 * static_cast<double>(layout.blob_bytes) / bytes_per_s;
  };
  if (profiles.size() != experts.slots.size()) {
    const EmulatedLink& link = options.devices.emulated_link;
    if (BackendOf(options.devices.kind).in_host_memory() && link.bytes_per_s > 0) {
      experts.copy_ns.assign(experts.slots.size(),
                             std::llround(expert_ns(link.bytes_per_s) + 1000 * link.latency_us));
    }
    return;
  }
  for (const DeviceProfile& profile : profiles) {
    const double rate = profile.copy_bytes_per_s(kFastPacketBytes);
    experts.copy_ns.push_back(rate > 0 ? std::llround(expert_ns(rate)) : 0);
  }
  const std::string weights = WeightTypeName(SameBitsAs(ChooseWeightType(options)));
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
