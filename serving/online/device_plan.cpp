#include "serving/online/device_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/model/device_operator.h"
#include "serving/model/device_rows.h"
#include "serving/model/experts_of_model.h"
#include "serving/online/device_backend.h"

namespace moesaic {
namespace {

// An emulated device stands in for one that is too small for its experts.
constexpr const char* kAutoEmulatedMemory = "25%";

uint64_t WorkspaceBytes(const EngineOptions& options, const ModelConfig& config) {
  return KernelsOf(options.devices) == nullptr
             ? 0
             : DeviceOperator::DeviceBytes(config, options.max_num_batched_tokens);
}

// Slots that a device cannot do with less of, beside those of its pinned experts. With the dense
// part on the device for the asking one is enough; by default it is there when it leaves room for
// what a token needs of a layer.
int64_t FewestSlots(const DeviceOptions& devices, const ModelConfig& config, bool with_dense,
                    const DevicePlan& plan) {
  const bool for_token = with_dense && devices.dense == DenseMode::kAuto;
  return std::min(for_token ? std::max<int64_t>(1, config.top_k()) : 1, plan.experts - plan.kept);
}

// "the 4 experts of a token", "the 12 pinned experts (--place) and one expert".
std::string SlotsText(int64_t kept, int64_t others) {
  std::string text;
  if (kept > 0) text = fmt::format("the {} pinned experts (--place)", kept);
  if (others == 0) return text;
  if (kept > 0) text += " and ";
  return text + (others == 1 ? "one expert" : fmt::format("the {} experts of a token", others));
}

std::string DeviceName(const DeviceOptions& devices, size_t device) {
  return fmt::format("{}:{}", DeviceKindName(devices.kind), device);
}

// The slots of a device with this many experts; its ledger, which begins with the dense part that
// it has, if any.
void PlanMemory(const EngineOptions& options, const ModelConfig& config, uint64_t slot_bytes,
                size_t device, const std::vector<MemoryItem>& dense, DevicePlan& plan) {
  const DeviceOptions& devices = options.devices;
  const uint64_t workspace = WorkspaceBytes(options, config);
  const uint64_t dense_bytes = SumOf(dense);
  const uint64_t fixed = dense_bytes + workspace;
  const int64_t others = FewestSlots(devices, config, !dense.empty(), plan);
  const int64_t fewest = plan.kept + others;
  const uint64_t fewest_bytes = static_cast<uint64_t>(fewest) * slot_bytes;
  plan.ledger.memory = DeviceName(devices, device);
  plan.ledger.limit_bytes = DeviceLimitBytes(devices, device);
  const uint64_t left = plan.ledger.limit_bytes > fixed ? plan.ledger.limit_bytes - fixed : 0;
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
        FormatBytes(plan.ledger.limit_bytes), device, dense_part, FormatBytes(workspace),
        SlotsText(plan.kept, others), FormatBytes(fewest_bytes), FormatBytes(fixed + fewest_bytes));
  }
  const bool chosen_here = devices.memory.is_auto();
  const bool all_that_is_left =
      chosen_here && (!devices.gpu_memory.is_auto() || !BackendOf(devices.kind).in_host_memory());
  const MemorySize share = chosen_here ? kAutoEmulatedMemory : devices.memory;
  uint64_t bytes =
      all_that_is_left ? left : share.BytesOf(static_cast<uint64_t>(plan.experts) * slot_bytes);
  // A quarter of few experts is less than one. The engine's own choice has to work; a share that
  // was asked for is taken at its word.
  const int64_t least = plan.kept + std::min<int64_t>(1, plan.experts - plan.kept);
  if (chosen_here) bytes = std::max(bytes, static_cast<uint64_t>(least) * slot_bytes);
  plan.slots = std::min<int64_t>(
      plan.experts, static_cast<int64_t>(std::min<uint64_t>(bytes / slot_bytes, INT32_MAX)));
  if (plan.slots < least && plan.kept == 0) {
    Fail(ErrorKind::kResourceExhausted,
         "--device-memory: {} hold no expert; one takes {} and device {} has {} of them",
         FormatBytes(bytes), FormatBytes(slot_bytes), device, plan.experts);
  }
  const uint64_t slots_bytes = static_cast<uint64_t>(plan.slots) * slot_bytes;
  const uint64_t kept_bytes = static_cast<uint64_t>(plan.kept) * slot_bytes;
  plan.ledger.Add(dense);
  if (plan.kept > 0) plan.ledger.Add("pinned experts", kept_bytes);
  plan.ledger.Add("expert slots", slots_bytes - std::min(slots_bytes, kept_bytes));
  if (workspace > 0) plan.ledger.Add("workspace", workspace);
  if (plan.slots < least) {
    Fail(ErrorKind::kResourceExhausted,
         "--device-memory: {} for experts are too little on device {}: {} take {}; raise it or pin "
         "fewer{}",
         FormatBytes(bytes), device, SlotsText(plan.kept, least - plan.kept),
         FormatBytes(static_cast<uint64_t>(least) * slot_bytes), LedgerLines(plan.ledger));
  }
  if (!plan.ledger.fits()) {
    Fail(ErrorKind::kResourceExhausted,
         "--device-memory: {} for experts and {} for the {} are {} on device {}, and --gpu-memory "
         "allows {}; lower the first or leave it out",
         FormatBytes(slots_bytes), FormatBytes(fixed),
         dense.empty() ? "workspace" : "dense part and the workspace",
         FormatBytes(plan.ledger.total_bytes()), device, FormatBytes(plan.ledger.limit_bytes));
  }
}

}  // namespace

void CheckDevices(const EngineOptions& options, const ModelConfig& config,
                  const ExpertLayout& layout) {
  const DeviceOptions& devices = options.devices;
  BackendOf(devices.kind).Check(devices);
  if (devices.count > std::min<int64_t>(config.num_experts(), kMaxLinks)) {
    Fail(ErrorKind::kInvalidArgument,
         "--devices: {} are more than this program can use with {} experts in a layer; give at "
         "most {}",
         devices.count, config.num_experts(), std::min<int64_t>(config.num_experts(), kMaxLinks));
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
  return BackendOf(devices.kind).MemoryBytes(device);
}

ExpertPlacement PlaceExperts(const DeviceOptions& options, const ModelConfig& config,
                             const FixedExperts& fixed) {
  return ExpertPlacement(GridOf(config), DeviceNodes(options), 0, fixed);
}

std::vector<DevicePlan> PlanDevices(const EngineOptions& options, const ModelConfig& config,
                                    const ExpertLayout& layout, const PlacedExperts& placed,
                                    const DenseLedger& dense) {
  CheckDevices(options, config, layout);
  const ExpertPlacement placement = PlaceExperts(options.devices, config, placed.fixed);
  std::vector<DevicePlan> plans;
  for (int d = 0; d < placement.num_devices(); ++d) {
    DevicePlan plan;
    for (const ExpertIndex expert : placement.experts(d)) {
      plan.experts += config.is_sparse(expert / config.num_experts()) ? 1 : 0;
    }
    plan.kept = std::count_if(placed.kept.begin(), placed.kept.end(),
                              [&](ExpertIndex expert) { return placement.device(expert) == d; });
    const auto device = static_cast<size_t>(d);
    PlanMemory(options, config, layout.slot_bytes, device,
               device < dense.size() ? dense[device] : std::vector<MemoryItem>(), plan);
    plans.push_back(std::move(plan));
  }
  return plans;
}

uint64_t DevicesHostBytes(const EngineOptions& options, const ModelConfig& config,
                          const std::vector<DevicePlan>& plans) {
  uint64_t bytes = 0;
  for (const DevicePlan& plan : plans) {
    if (BackendOf(options.devices.kind).in_host_memory()) bytes += plan.ledger.total_bytes();
    if (KernelsOf(options.devices) != nullptr) {
      bytes += DeviceOperator::HostBytes(config, options.max_num_batched_tokens);
    }
  }
  return bytes;
}

const char* DevicesHostName(const DeviceOptions& options) {
  return BackendOf(options.kind).in_host_memory() ? "emulated devices" : "staging of devices";
}

std::string DeviceLedgerText(const std::vector<DevicePlan>& plans) {
  std::string text;
  for (size_t d = 0; d < plans.size(); ++d) {
    const DevicePlan& plan = plans[d];
    const MemoryLedger& ledger = plan.ledger;
    text += fmt::format("{}{}:", d == 0 ? "" : "\n", ledger.memory);
    for (const MemoryItem& item : ledger.items) {
      text += fmt::format(" {} {},", item.name, FormatBytes(item.bytes));
    }
    text += fmt::format(" in all {}{}; {} of its {} experts fit", FormatBytes(ledger.total_bytes()),
                        ledger.limit_bytes == UINT64_MAX
                            ? ""
                            : fmt::format(" of {}", FormatBytes(ledger.limit_bytes)),
                        plan.slots, plan.experts);
  }
  return text;
}

}  // namespace moesaic
