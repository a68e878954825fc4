// An emulated device, whose memory is the host's, and kernels that are compiled for it.
#include "core/device/emulated_device.h"
#include "tests/gpu/host/host_kernels.h"
#include "tests/gpu/kernel_machine.h"

namespace moesaic {
namespace {

class HostMachine : public KernelMachine {
 public:
  explicit HostMachine(uint64_t capacity_bytes) : device_(system_, Options(capacity_bytes)) {}
  Device& device() override { return device_; }
  const cuda::Kernels& kernels() const override { return HostKernels(); }

 private:
  static EmulatedDeviceOptions Options(uint64_t capacity_bytes) {
    EmulatedDeviceOptions options;
    options.name = "host";
    options.capacity_bytes = capacity_bytes;
    return options;
  }

  EmulatedSystem system_;
  EmulatedDevice device_;
};

}  // namespace

std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string&) {
  return std::make_unique<HostMachine>(capacity_bytes);
}

}  // namespace moesaic
