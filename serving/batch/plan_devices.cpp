#include "serving/batch/plan_devices.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/model/host_dense.h"
#include "serving/model/split_dense.h"
#include "serving/online/dense_place.h"
#include "serving/online/device_plan.h"
#include "serving/online/place_rules.h"

namespace moesaic {
namespace {

// Devices whose threads compute in host memory: what is copied between the dense modules of the
// first and attention.
std::vector<DevicePlan> PlanThreadDevices(const EngineOptions& options, const ModelFiles& files,
                                          int64_t rows) {
  const ModelConfig& config = files.config;
  std::vector<DevicePlan> devices = PlanDevices(options, config, files.experts->layout(), {});
  const uint64_t bytes =
      RoundUp(FloatRowBytes(rows, HostDense::ProjectedStride(config)), Device::kAlignment) +
      RoundUp(FloatRowBytes(rows, HostDense::MixedStride(config)), Device::kAlignment);
  MemoryLedger& ledger = devices.front().ledger;
  const uint64_t experts_bytes = ledger.total_bytes();
  ledger.Add("hidden states", bytes);
  if (!ledger.fits()) {
    Fail(ErrorKind::kResourceExhausted,
         "--gpu-memory: {} on device 0 are too little for {} of experts and {} of hidden states; "
         "give --device-memory or less --max-num-batched-tokens",
         FormatBytes(ledger.limit_bytes), FormatBytes(experts_bytes), FormatBytes(bytes));
  }
  return devices;
}

}  // namespace

EngineOptions WithRows(const EngineOptions& options, const BatchSizes& sizes) {
  EngineOptions with = options;
  with.max_num_batched_tokens = sizes.max_batch_tokens;
  return with;
}

ModelLimits DenseLimitsOf(const EngineOptions& options, const BatchSizes& sizes) {
  return SplitDense::DeviceLimits(LimitsOf(options, sizes));
}

BatchDevices PlanBatchDevices(const EngineOptions& options, const ModelFiles& files,
                              const BatchSizes& sizes) {
  if (KernelsOf(options.devices) == nullptr) {
    BatchDevices plan;
    plan.devices = PlanThreadDevices(options, files, sizes.max_batch_tokens);
    return plan;
  }
  const ModelConfig& config = files.config;
  const EngineOptions with = WithRows(WithDenseByRules(options, config), sizes);
  const ExpertLayout& layout = files.experts->layout();
  BatchDevices plan;
  const DenseMode mode = with.devices.dense;
  if (mode == DenseMode::kSharded) {
    Fail(ErrorKind::kInvalidArgument,
         "--gpu-dense tp: throughput mode has the dense part on one GPU; give --gpu-dense on, or "
         "use "
         "latency mode");
  }
  CheckDevices(with, config, layout);
  if (mode != DenseMode::kOff) {
    try {
      const WeightType type = ChooseWeightType(options);
      const ModelLimits limits = DenseLimitsOf(options, sizes);
      DeviceDense::CheckSupported(config, type, limits.kv_type, 1);
      plan.devices = PlanDevices(with, config, layout, {}, DenseLedgerOf(config, type, limits, 1));
      plan.dense_on_device = true;
      return plan;
    } catch (const Error& error) {
      const bool other_place =
          error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kResourceExhausted;
      if (mode == DenseMode::kOn || !other_place) throw;
      plan.why_dense_on_host = error.what();
    }
  }
  plan.devices = PlanDevices(with, config, layout, {});
  return plan;
}

}  // namespace moesaic
