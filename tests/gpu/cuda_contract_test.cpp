// A CUDA device keeps the contract of every device (tests/core/device/device_contract.cpp). With
// one GPU the devices of a machine share it.
#include "tests/core/device/device_contract.h"
#include "tests/gpu/cuda_machine.h"

namespace moesaic {
namespace {

MachineFactory Factory() {
  return {"Gpu", 3,
          [](int devices, uint64_t capacity_bytes) {
            return std::make_unique<CudaTestMachine>(devices, capacity_bytes);
          },
          [] { return FindCudaDevices().why_none; }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(Factory()), MachineName);

}  // namespace
}  // namespace moesaic
