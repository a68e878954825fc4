#include <vector>

#include "core/device/cuda_device.h"
#include "tests/gpu/kernel_machine.h"

namespace moesaic {
namespace {

class GpuMachine : public KernelMachine {
 public:
  // Several may share a GPU.
  GpuMachine(uint64_t capacity_bytes, size_t devices, size_t gpus) {
    std::vector<Device*> all;
    for (size_t d = 0; d < devices; ++d) {
      devices_.push_back(CreateCudaDevice({.ordinal = static_cast<int>(d % gpus),
                                           .capacity_bytes = capacity_bytes,
                                           .load_kernels = cuda::LoadKernels,
                                           .fetch = cuda::FetchFromHost}));
      all.push_back(devices_.back().get());
    }
    ConnectCudaPeers(all);
  }
  Device& device(size_t index) override { return *devices_[index]; }
  const cuda::Kernels& kernels() const override { return *cuda::CompiledKernels(); }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace

std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string& why_not,
                                                 size_t devices) {
  const CudaMachine machine = FindCudaDevices();
  why_not = machine.why_none;
  if (!why_not.empty()) return nullptr;
  return std::make_unique<GpuMachine>(capacity_bytes, devices, machine.devices.size());
}

}  // namespace moesaic
