#include "serving/online/dense_place.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/device/nccl_collective.h"
#include "kernels/cuda/gemm.h"
#include "serving/model/dense_slices.h"
#include "serving/model/device_dense.h"
#include "serving/model/device_operator.h"
#include "serving/model/weights.h"
#include "serving/online/device_backend.h"
#include "serving/online/kv_plan.h"
#include "serving/online/part_options.h"

namespace moesaic {
namespace {

// The dense part on the first `count` devices, whose memory it shares with the experts there.
// Throws as PlanDevices and the dense part do.
void PlanDenseOnDevices(const EngineOptions& options, const ModelConfig& config,
                        const ExpertLayout& layout, int64_t context, uint64_t machine_bytes,
                        int count, EnginePlan& plan) {
  const WeightType type = ChooseWeightType(options);
  DeviceDense::CheckSupported(config, type, ChooseKvType(options), count);
  ModelLimits limits = LimitsOf(options, plan);
  limits.max_context_tokens = context;
  limits.num_kv_blocks = 1;
  const DenseLedger least = DenseLedgerOf(config, type, limits, count);
  std::vector<DevicePlan> without;
  if (!options.devices.memory.is_auto()) {
    without = PlanDevices(options, config, layout, plan.placed);
  }
  const bool emulated = BackendOf(options.devices.kind).in_host_memory();
  // Keys and values of all devices together: what they may be of, and what is left for them when
  // every device has its heads' share of them.
  uint64_t whole_bytes = 0;
  uint64_t left_bytes = UINT64_MAX;
  bool fits = true;
  for (int d = 0; d < count; ++d) {
    const auto device = static_cast<size_t>(d);
    uint64_t fixed_bytes = DeviceOperator::DeviceBytes(config, options.max_num_batched_tokens);
    fixed_bytes += SumOf(least[device]);
    if (!without.empty()) {
      fixed_bytes += static_cast<uint64_t>(without[device].slots) * layout.slot_bytes;
    }
    uint64_t limit_bytes = DeviceLimitBytes(options.devices, device);
    if (emulated) limit_bytes = std::min(limit_bytes, machine_bytes);
    fits = fits && limit_bytes >= fixed_bytes;
    whole_bytes += std::min(limit_bytes, UINT64_MAX - whole_bytes);
    const int64_t kv_heads = KvHeadSlice(config.attention().kv_heads, count, d).count();
    if (kv_heads == 0) continue;
    const double of_all = static_cast<double>(limit_bytes - std::min(limit_bytes, fixed_bytes)) *
                          static_cast<double>(config.attention().kv_heads) /
                          static_cast<double>(kv_heads);
    if (of_all < static_cast<double>(left_bytes)) left_bytes = static_cast<uint64_t>(of_all);
  }
  if (emulated) whole_bytes = std::min(whole_bytes, machine_bytes);
  if (!fits && options.kv_memory.is_auto()) {
    PlanDevices(options, config, layout, plan.placed, least);  // says what is missing
  }
  const KvPlan kv = PlanKv(options, config, context, left_bytes, whole_bytes);
  plan.num_kv_blocks = kv.num_blocks;
  plan.max_context_tokens = kv.max_context_tokens;
  plan.devices = PlanDevices(options, config, layout, plan.placed,
                             DenseLedgerOf(config, type, LimitsOf(options, plan), count));
  plan.dense_devices = count;
}

void CheckCublas(const EngineOptions& options) {
  if (options.exact_numerics) {
    Fail(ErrorKind::kInvalidArgument,
         "--gpu-gemm cublas: it sums in an order that depends on the number of rows, so that "
         "answers would depend on what else is running; give --numerics fast to allow that");
  }
  if (options.devices.kind != DeviceKind::kCuda) {
    Fail(ErrorKind::kUnsupported, "--gpu-gemm cublas: only CUDA devices have it; leave it out");
  }
  if (options.devices.dense == DenseMode::kOff) {
    Fail(ErrorKind::kInvalidArgument,
         "--gpu-gemm cublas: it multiplies by the matrices of the dense part, which --gpu-dense "
         "off (or a rule of --place) leaves to the CPU; leave one of them out");
  }
  if (const std::string why = cuda::WhyNoCublas(); !why.empty()) {
    Fail(ErrorKind::kUnsupported, "--gpu-gemm cublas: {}; or leave it out", why);
  }
}

}  // namespace

void CheckDenseMode(const EngineOptions& engine) {
  const DeviceOptions& options = engine.devices;
  if (options.cublas) CheckCublas(engine);
  if (options.dense != DenseMode::kOn && options.dense != DenseMode::kSharded) return;
  if (options.count == 0 ||
      (BackendOf(options.kind).in_host_memory() && KernelsOf(options) == nullptr)) {
    Fail(ErrorKind::kInvalidArgument,
         "--gpu-dense {} (or a rule of --place): there is no device that computes; give "
         "--device-kind cuda, or leave it out",
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
    return std::vector<MemoryItem>{{"dense weights", SumOnDevice({weights})},
                                   {"KV cache", SumOnDevice({kv})},
                                   {"dense workspace", workspace}};
  };
  DenseLedger ledger;
  for (int d = 0; d < devices; ++d) {
    ledger.push_back(entries(DeviceDense::WeightBytes(config, type, devices, d),
                             DeviceDense::KvBytes(config, limits, devices, d),
                             DeviceDense::WorkspaceBytes(config, limits, devices, d)));
  }
  return ledger;
}

uint64_t DenseHostBytes(const ModelConfig& config, const ModelLimits& limits, int devices) {
  return devices == 0 ? 0 : DeviceDense::HostBytes(config, limits, devices);
}

void PlanWithDevices(const EngineOptions& options, const ModelConfig& config,
                     const ExpertLayout& layout, int64_t context, uint64_t machine_bytes,
                     EnginePlan& plan) {
  const DenseMode mode = options.devices.dense;
  CheckDevices(options, config, layout);
  if (mode != DenseMode::kOff && KernelsOf(options.devices) != nullptr) {
    try {
      if (options.defer_experts > 0) {
        Fail(
            ErrorKind::kUnsupported,
            "--gpu-dense: --defer-experts {} is for a dense part on the CPU; leave one of them out",
            options.defer_experts);
      }
      EnginePlan with_dense = plan;
      PlanDenseOnDevices(options, config, layout, context, machine_bytes,
                         mode == DenseMode::kSharded ? options.devices.count : 1, with_dense);
      plan = std::move(with_dense);
      return;
    } catch (const Error& error) {
      const bool other_place =
          error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kResourceExhausted;
      if (mode != DenseMode::kAuto || !other_place) throw;
      plan.why_dense_on_host = error.what();
    }
  }
  plan.devices = PlanDevices(options, config, layout, plan.placed);
}

}  // namespace moesaic
