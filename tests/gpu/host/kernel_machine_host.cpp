// Emulated devices, whose memory is the host's, and kernels that are compiled for it.
#include <vector>

#include "core/device/emulated_device.h"
#include "tests/gpu/host/host_kernels.h"
#include "tests/gpu/kernel_machine.h"

namespace moesaic {
namespace {

class HostMachine : public KernelMachine {
 public:
  HostMachine(uint64_t capacity_bytes, size_t devices) {
    EmulatedDeviceOptions options;
    options.capacity_bytes = capacity_bytes;
    for (size_t d = 0; d < devices; ++d) {
      options.name = "host:" + std::to_string(d);
      devices_.push_back(std::make_unique<EmulatedDevice>(system_, options));
    }
  }
  Device& device(size_t index) override { return *devices_[index]; }
  const cuda::Kernels& kernels() const override { return HostKernels(); }

 private:
  EmulatedSystem system_;
  std::vector<std::unique_ptr<EmulatedDevice>> devices_;
};

}  // namespace

std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string&,
                                                 size_t devices) {
  return std::make_unique<HostMachine>(capacity_bytes, devices);
}

}  // namespace moesaic
