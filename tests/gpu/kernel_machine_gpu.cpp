#include "core/device/cuda_device.h"
#include "tests/gpu/kernel_machine.h"

namespace moesaic {
namespace {

class GpuMachine : public KernelMachine {
 public:
  explicit GpuMachine(uint64_t capacity_bytes)
      : device_(CreateCudaDevice({.ordinal = 0, .capacity_bytes = capacity_bytes})) {}
  Device& device() override { return *device_; }
  const cuda::Kernels& kernels() const override { return *cuda::CompiledKernels(); }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace

std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string& why_not) {
  why_not = FindCudaDevices().why_none;
  if (!why_not.empty()) return nullptr;
  return std::make_unique<GpuMachine>(capacity_bytes);
}

}  // namespace moesaic
