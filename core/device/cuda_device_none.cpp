// What a build without CUDA answers when it is asked for a CUDA device.
#include "core/base/check.h"
#include "core/device/cuda_device.h"

namespace moesaic {
namespace {

constexpr const char* kNoCuda =
    "this program was built without CUDA; build it with the preset `cuda` (make build-cuda), or "
    "use "
    "the CPU";

}  // namespace

CudaMachine FindCudaDevices() { return {.devices = {}, .why_none = kNoCuda}; }

std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options) {
  Fail(ErrorKind::kUnsupported, "cuda:{}: {}", options.ordinal, kNoCuda);
}

int ConnectCudaPeers(std::span<Device* const> devices) {
  CHECK(devices.empty());  // there are no CUDA devices to connect
  return 0;
}

}  // namespace moesaic
