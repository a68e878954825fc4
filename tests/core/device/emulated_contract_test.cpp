// The emulated device keeps the contract of every device, on either clock.
#include "tests/core/device/device_contract.h"
#include "tests/core/device/emulated_machine.h"

namespace moesaic {
namespace {

MachineFactory Factory(const char* name, TestTime time, EmulatedLink link) {
  return {name, 4, [time, link](int devices, uint64_t capacity_bytes) {
            EmulatedDeviceOptions options;
            options.capacity_bytes = capacity_bytes;
            options.host_to_device = options.device_to_host = options.peer = link;
            return std::make_unique<EmulatedMachine>(time, devices, options);
          }};
}

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceContract,
                         testing::Values(Factory("VirtualTime", TestTime::kVirtual, {1e6, 1000}),
                                         Factory("RealTime", TestTime::kReal, {20e9, 5}),
                                         Factory("RealTimeUnlimited", TestTime::kReal, {})),
                         MachineName);

}  // namespace
}  // namespace moesaic
