// CUDA devices for an engine; in a build without CUDA, why there are none.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/device/cuda_device.h"
#include "serving/online/device_backend.h"

namespace moesaic {

namespace {

// Of a GPU's memory: what the context, the kernels' code and stacks, and the display take.
constexpr uint64_t kGpuReserveBytes = uint64_t{1} << 30;

class Cuda final : public DeviceBackend {
 public:
  int default_count() const override { return 1; }

  void Check(const DeviceOptions& options) const override {
    const CudaMachine machine = FindCudaDevices();
    if (machine.devices.empty()) {
      Fail(cuda::CompiledKernels() == nullptr ? ErrorKind::kUnsupported : ErrorKind::kNotFound,
           "--device-kind cuda: {}; to go without, leave --device-kind and --devices out",
           machine.why_none);
    }
    if (options.count > static_cast<int64_t>(machine.devices.size())) {
      Fail(ErrorKind::kInvalidArgument, "--devices: {} are asked for, and there {} {} here",
           options.count, machine.devices.size() == 1 ? "is" : "are", machine.devices.size());
    }
  }

  uint64_t MemoryBytes(size_t device) const override {
    const uint64_t total = FindCudaDevices().devices[device].total_bytes;
    const uint64_t reserve = std::max(kGpuReserveBytes, total / 16);
    return total > reserve ? total - reserve : 0;
  }

  const cuda::Kernels* Kernels(const DeviceOptions& /*options*/) const override {
    return cuda::CompiledKernels();
  }

  std::optional<std::vector<DeviceProfile>> Profiles(const HardwareProfile& profile,
                                                     size_t count) const override {
    std::vector<DeviceProfile> known;
    for (const CudaDeviceInfo& info : FindCudaDevices().devices) {
      if (known.size() == count) break;
      const DeviceProfile* const device =
          profile.DeviceNamed(fmt::format("cuda:{}", info.ordinal), info.name);
      if (device != nullptr) known.push_back(*device);
    }
    if (known.size() < count) return std::nullopt;
    return known;
  }

  EngineDevices Make(const DeviceOptions& options,
                     std::span<const DevicePlan> plans) const override {
    EngineDevices made;
    for (size_t d = 0; d < plans.size(); ++d) {
      made.devices.push_back(CreateCudaDevice({.ordinal = static_cast<int>(d),
                                               .capacity_bytes = plans[d].ledger.total_bytes(),
                                               .load_kernels = cuda::LoadKernels,
                                               .fetch = cuda::FetchFromHost}));
    }
    if (options.dense == DenseMode::kSharded) ConnectCudaPeers(made.pointers());
    return made;
  }
};

}  // namespace

const DeviceBackend& CudaBackend() {
  static const Cuda backend;
  return backend;
}

}  // namespace moesaic
