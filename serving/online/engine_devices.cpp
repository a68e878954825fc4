#include "serving/online/engine_devices.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/device/cuda_device.h"
#include "core/device/nccl_collective.h"
#include "serving/model/dense_operator.h"
#include "serving/model/dense_shards.h"
#include "serving/model/device_rows.h"
#include "serving/model/model.h"

namespace moesaic {
namespace {

// An emulated device stands in for one that is too small for its experts.
constexpr const char* kAutoEmulatedMemory = "25%";

// Of a GPU's memory: what the context, the kernels' code and stacks, and the display take.
constexpr uint64_t kGpuReserveBytes = uint64_t{1} << 30;

std::vector<int> NodesOf(const DeviceOptions& options) {
  std::vector<int> nodes;
  for (int d = 0; d < options.count; ++d) {
    const auto turns = options.numa_nodes.size();
    nodes.push_back(turns == 0 ? -1 : options.numa_nodes[static_cast<size_t>(d) % turns]);
  }
  return nodes;
}

void CheckCudaDevices(const DeviceOptions& devices) {
  const CudaMachine machine = FindCudaDevices();
  if (machine.devices.empty()) {
    Fail(cuda::CompiledKernels() == nullptr ? ErrorKind::kUnsupported : ErrorKind::kNotFound,
         "--device-kind cuda: {}; to go without, leave --device-kind and --devices out",
         machine.why_none);
  }
  if (devices.count > static_cast<int64_t>(machine.devices.size())) {
    Fail(ErrorKind::kInvalidArgument, "--devices: {} are asked for, and there {} {} here",
         devices.count, machine.devices.size() == 1 ? "is" : "are", machine.devices.size());
  }
}

uint64_t WorkspaceBytes(const EngineOptions& options, const ModelConfig& config) {
  return KernelsOf(options.devices) == nullptr
             ? 0
             : DeviceOperator::DeviceBytes(config, options.max_num_batched_tokens);
}

// Slots that a device cannot do with less of. With the dense part on the device for the asking one
// is enough; by default it is there when it leaves room for what a token needs of a layer.
int64_t FewestSlots(const DeviceOptions& devices, const ModelConfig& config, bool with_dense,
                    int64_t experts) {
  if (!with_dense || devices.dense != DenseMode::kAuto) return 1;
  return std::clamp<int64_t>(config.top_k, 1, std::max<int64_t>(1, experts));
}

// The slots of a device with this many experts; its ledger, which begins with the dense part that
// it has, if any.
void PlanMemory(const EngineOptions& options, const ModelConfig& config, uint64_t slot_bytes,
                size_t device, std::span<const LedgerEntry> dense, DevicePlan& plan) {
  const DeviceOptions& devices = options.devices;
  const uint64_t workspace = WorkspaceBytes(options, config);
  uint64_t dense_bytes = 0;
  for (const LedgerEntry& entry : dense) dense_bytes += entry.bytes;
  const uint64_t fixed = dense_bytes + workspace;
  const int64_t fewest = FewestSlots(devices, config, !dense.empty(), plan.experts);
  const uint64_t fewest_bytes = static_cast<uint64_t>(fewest) * slot_bytes;
  plan.limit_bytes = DeviceLimitBytes(devices, device);
  const uint64_t left = plan.limit_bytes > fixed ? plan.limit_bytes - fixed : 0;
  if (left < fewest_bytes) {
    std::string dense_part;
    if (!dense.empty()) {
      dense_part = fmt::format(
          "the dense part takes {} (less with a lower --kv-memory or --max-model-len, nothing with "
          "--gpu-dense off), ",
          FormatBytes(dense_bytes));
    }
    Fail(
        ErrorKind::kResourceExhausted,
        "--gpu-memory: {} on device {} are too little: {}the workspace takes {} (less with a lower "
        "--max-num-batched-tokens) and {} {}; at least {} are needed",
        FormatBytes(plan.limit_bytes), device, dense_part, FormatBytes(workspace),
        fewest == 1 ? "one expert" : fmt::format("the {} experts of a token", fewest),
        FormatBytes(fewest_bytes), FormatBytes(fixed + fewest_bytes));
  }
  const bool chosen_here = devices.memory.is_auto();
  const bool all_that_is_left =
      chosen_here && (!devices.gpu_memory.is_auto() || devices.kind == DeviceKind::kCuda);
  const MemorySize share = chosen_here ? kAutoEmulatedMemory : devices.memory;
  uint64_t bytes =
      all_that_is_left ? left : share.BytesOf(static_cast<uint64_t>(plan.experts) * slot_bytes);
  // A quarter of few experts is less than one. The engine's own choice has to work; a share that
  // was asked for is taken at its word.
  if (chosen_here) bytes = std::max(bytes, slot_bytes);
  plan.slots = std::min<int64_t>(
      plan.experts, static_cast<int64_t>(std::min<uint64_t>(bytes / slot_bytes, INT32_MAX)));
  if (plan.slots < 1) {
    Fail(ErrorKind::kResourceExhausted,
         "--device-memory: {} hold no expert; one takes {} and device {} has {} of them",
         FormatBytes(bytes), FormatBytes(slot_bytes), device, plan.experts);
  }
  const uint64_t slots_bytes = static_cast<uint64_t>(plan.slots) * slot_bytes;
  plan.ledger.assign(dense.begin(), dense.end());
  plan.ledger.push_back({"expert slots", slots_bytes});
  if (workspace > 0) plan.ledger.push_back({"workspace", workspace});
  plan.memory_bytes = slots_bytes + fixed;
  if (plan.memory_bytes > plan.limit_bytes) {
    Fail(ErrorKind::kResourceExhausted,
         "--device-memory: {} for experts and {} for the {} are {} on device {}, and --gpu-memory "
         "allows {}; lower the first or leave it out",
         FormatBytes(slots_bytes), FormatBytes(fixed),
         dense.empty() ? "workspace" : "dense part and the workspace",
         FormatBytes(plan.memory_bytes), device, FormatBytes(plan.limit_bytes));
  }
}

}  // namespace

void CheckDevices(const EngineOptions& options, const ModelConfig& config,
                  const ExpertLayout& layout) {
  const DeviceOptions& devices = options.devices;
  if (devices.kind == DeviceKind::kCuda) CheckCudaDevices(devices);
  if (devices.count > std::min<int64_t>(config.num_experts, kMaxLinks)) {
    Fail(ErrorKind::kInvalidArgument,
         "--devices: {} are more than this program can use with {} experts in a layer; give at "
         "most {}",
         devices.count, config.num_experts, std::min<int64_t>(config.num_experts, kMaxLinks));
  }
  if (!options.expert_memory.is_auto() && !options.expert_memory.is_all()) {
    Fail(ErrorKind::kInvalidArgument,
         "--expert-memory {}: with --devices all experts live in host memory; leave it at auto and "
         "give --device-memory",
         options.expert_memory.text());
  }
  if (KernelsOf(devices) == nullptr) return;
  DeviceOperator::CheckSupported(layout, config, options.max_num_batched_tokens);
  if (options.exact_numerics && devices.miss == MissMode::kHost) {
    Fail(ErrorKind::kInvalidArgument,
         "--miss host: GPU and host round differently, so that answers would depend on what the "
         "GPU happens to hold; give --numerics fast to allow that");
  }
}

uint64_t DeviceLimitBytes(const DeviceOptions& devices, size_t device) {
  if (!devices.gpu_memory.is_auto()) return devices.gpu_memory.BytesOf(UINT64_MAX);
  if (devices.kind == DeviceKind::kEmulated) return UINT64_MAX;
  const uint64_t total = FindCudaDevices().devices[device].total_bytes;
  const uint64_t reserve = std::max(kGpuReserveBytes, total / 16);
  return total > reserve ? total - reserve : 0;
}

void CheckDenseMode(const DeviceOptions& options) {
  if (options.dense != DenseMode::kOn && options.dense != DenseMode::kSharded) return;
  if (options.count == 0 ||
      (options.kind == DeviceKind::kEmulated && KernelsOf(options) == nullptr)) {
    Fail(ErrorKind::kInvalidArgument,
         "--gpu-dense {}: there is no device that computes; give --device-kind cuda, or leave "
         "--gpu-dense out",
         options.dense == DenseMode::kOn ? "on" : "tp");
  }
  if (options.nccl && (options.kind != DeviceKind::kCuda || !BuiltWithNccl())) {
    Fail(ErrorKind::kUnsupported, "--gpu-collective nccl: {}; leave it out",
         options.kind == DeviceKind::kCuda ? "this program was built without NCCL"
                                           : "only CUDA devices have it");
  }
}

DenseLedger DenseLedgerOf(const ModelConfig& config, WeightType type, const ModelLimits& limits,
                          int devices) {
  const auto entries = [](uint64_t weights, uint64_t kv, uint64_t workspace) {
    return std::vector<LedgerEntry>{{"dense weights", SumOnDevice({weights})},
                                    {"KV cache", SumOnDevice({kv})},
                                    {"dense workspace", workspace}};
  };
  if (devices == 1) {
    const auto blocks = static_cast<uint64_t>(limits.num_kv_blocks);
    return {entries(ModelWeights::Bytes(config, type),
                    CheckedMul(blocks, Model::KvBlockBytes(config, limits.kv_type), "KV memory"),
                    DenseOperator::WorkspaceBytes(config, limits))};
  }
  DenseLedger ledger;
  for (int d = 0; d < devices; ++d) {
    ledger.push_back(entries(DenseShards::WeightBytes(config, type, devices, d),
                             DenseShards::KvBytes(config, limits, devices, d),
                             DenseShards::WorkspaceBytes(config, limits, devices, d)));
  }
  return ledger;
}

uint64_t DenseHostBytes(const ModelConfig& config, const ModelLimits& limits, int devices) {
  if (devices == 0) return 0;
  return devices == 1 ? DenseOperator::HostBytes(config, limits)
                      : DenseShards::HostBytes(config, limits);
}

const cuda::Kernels* KernelsOf(const DeviceOptions& options) {
  return options.kind == DeviceKind::kCuda ? cuda::CompiledKernels() : options.emulated_kernels;
}

MissMode MissModeOf(const EngineOptions& options) {
  const bool alone = options.exact_numerics && KernelsOf(options.devices) != nullptr;
  return alone ? MissMode::kFetch : options.devices.miss;
}

ExpertPlacement PlaceExperts(const DeviceOptions& options, const ModelConfig& config) {
  const ExpertGrid grid(static_cast<int>(config.num_layers), static_cast<int>(config.num_experts));
  return ExpertPlacement(grid, NodesOf(options));
}

std::vector<DevicePlan> PlanDevices(const EngineOptions& options, const ModelConfig& config,
                                    const ExpertLayout& layout, const DenseLedger& dense) {
  CheckDevices(options, config, layout);
  const ExpertPlacement placement = PlaceExperts(options.devices, config);
  std::vector<DevicePlan> plans;
  for (int d = 0; d < placement.num_devices(); ++d) {
    DevicePlan plan;
    for (const ExpertIndex expert : placement.experts(d)) {
      const auto layer = static_cast<size_t>(expert / config.num_experts);
      plan.experts += config.layer_is_sparse[layer] ? 1 : 0;
    }
    const auto device = static_cast<size_t>(d);
    PlanMemory(options, config, layout.slot_bytes, device,
               device < dense.size() ? dense[device] : std::vector<LedgerEntry>(), plan);
    plans.push_back(std::move(plan));
  }
  return plans;
}

uint64_t DevicesHostBytes(const EngineOptions& options, const ModelConfig& config,
                          const std::vector<DevicePlan>& plans) {
  uint64_t bytes = 0;
  for (const DevicePlan& plan : plans) {
    if (options.devices.kind == DeviceKind::kEmulated) bytes += plan.memory_bytes;
    if (KernelsOf(options.devices) != nullptr) {
      bytes += DeviceOperator::HostBytes(config, options.max_num_batched_tokens);
    }
  }
  return bytes;
}

std::string DeviceLedgerText(const EngineOptions& options, const std::vector<DevicePlan>& plans) {
  std::string text;
  for (size_t d = 0; d < plans.size(); ++d) {
    const DevicePlan& plan = plans[d];
    text += fmt::format("{}{}:{}:", d == 0 ? "" : "\n", DeviceKindName(options.devices.kind), d);
    for (const LedgerEntry& entry : plan.ledger) {
      text += fmt::format(" {} {},", entry.name, FormatBytes(entry.bytes));
    }
    text += fmt::format(
        " in all {}{}; {} of its {} experts fit", FormatBytes(plan.memory_bytes),
        plan.limit_bytes == UINT64_MAX ? "" : fmt::format(" of {}", FormatBytes(plan.limit_bytes)),
        plan.slots, plan.experts);
  }
  return text;
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
      made.devices.push_back(CreateCudaDevice(
          {.ordinal = static_cast<int>(d), .capacity_bytes = plans[d].memory_bytes}));
    }
    if (options.dense == DenseMode::kSharded) ConnectCudaPeers(made.pointers());
    return made;
  }
  made.emulated = std::make_unique<EmulatedSystem>();
  const std::vector<int> nodes = NodesOf(options);
  for (size_t d = 0; d < plans.size(); ++d) {
    EmulatedDeviceOptions device;
    device.name = fmt::format("emulated:{}", d);
    device.capacity_bytes = plans[d].memory_bytes;
    device.numa_node = nodes[d];
    device.host_to_device = options.emulated_link;
    device.device_to_host = options.emulated_link;
    if (d < options.emulated_faults.size()) device.faults = options.emulated_faults[d];
    made.devices.push_back(std::make_unique<EmulatedDevice>(*made.emulated, std::move(device)));
  }
  return made;
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

std::unique_ptr<DensePart> MakeDense(const EngineOptions& options, const EngineDevices& devices,
                                     int count, const ModelConfig& config,
                                     const ModelWeights& weights, const ModelLimits& limits) {
  if (count == 0) return nullptr;
  const cuda::Kernels& kernels = *KernelsOf(options.devices);
  const WeightType type = ChooseWeightType(options);
  const std::vector<Device*> all = devices.pointers();
  if (count == 1) {
    return std::make_unique<DenseOperator>(*all.front(), kernels, config, type, weights, limits);
  }
  return std::make_unique<DenseShards>(
      std::span(all).first(static_cast<size_t>(count)), kernels, config, type, weights, limits,
      options.devices.nccl ? MakeNcclCollective : MakePeerCollective);
}

}  // namespace moesaic
