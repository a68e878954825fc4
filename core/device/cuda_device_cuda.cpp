#include "core/device/cuda_device.h"

#include <set>
#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"
#include "core/device/internal/cuda_device_impl.h"
#include "core/device/internal/cuda_stream.h"
#include "core/device/pci_device.h"

namespace moesaic {
namespace cuda {

std::optional<Error> CudaHostPinner::Pin(std::span<std::byte> memory) {
  if (memory.empty()) return std::nullopt;
  const CurrentDevice current(ordinal_);
  const cudaError_t code = cudaHostRegister(memory.data(), memory.size(),
                                            cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (code == cudaSuccess) return std::nullopt;
  cudaGetLastError();
  return Error(ErrorKind::kResourceExhausted,
               fmt::format("cannot pin {} of host memory for cuda:{}: {} ({}); copies from it are "
                           "slower. Raise the limit of locked memory (ulimit -l, LimitMEMLOCK= of "
                           "the service, --ulimit memlock=-1 of a container)",
                           FormatBytes(memory.size()), ordinal_, cudaGetErrorString(code),
                           cudaGetErrorName(code)));
}

void CudaHostPinner::Unpin(std::span<std::byte> memory) {
  if (memory.empty()) return;
  const CurrentDevice current(ordinal_);
  cudaHostUnregister(memory.data());
  cudaGetLastError();
}

DeviceMemory::DeviceMemory(int ordinal, uint64_t bytes) : ordinal_(ordinal) {
  if (bytes == 0) return;
  const CurrentDevice current(ordinal_);
  const cudaError_t code = cudaMalloc(&data_, bytes);
  if (code == cudaSuccess) return;
  cudaGetLastError();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  Fail(ErrorKind::kResourceExhausted,
       "cuda:{}: cannot take {} of device memory: {} ({}); {} of {} are free. Lower --gpu-memory, "
       "or end what else uses the device",
       ordinal_, FormatBytes(bytes), cudaGetErrorString(code), cudaGetErrorName(code),
       FormatBytes(free_bytes), FormatBytes(total_bytes));
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  const CurrentDevice current(ordinal_);
  cudaFree(data_);
  cudaGetLastError();
}

CudaDevice::CudaDevice(const CudaDeviceInfo& info, const CudaDeviceOptions& options)
    : name_(fmt::format("cuda:{}", info.ordinal)),
      numa_node_(info.numa_node),
      core_(info.ordinal, options.fetch),
      memory_(info.ordinal, options.capacity_bytes),
      arena_(memory_.data(), options.capacity_bytes, kAlignment),
      pinner_(info.ordinal) {}

std::optional<DeviceBuffer> CudaDevice::Allocate(uint64_t bytes) {
  if (core_.lost()) return std::nullopt;
  std::optional<ArenaBlock> block = arena_.Allocate(bytes);
  if (!block) return std::nullopt;
  return DeviceBuffer(this, std::move(*block));
}

bool CudaDevice::KernelsReach(std::span<const std::byte> host_memory) const {
  const CurrentDevice current(core_.ordinal());
  const void* const address = core_.KernelAddress(host_memory.data());
  return address != nullptr && address == host_memory.data();
}

std::unique_ptr<Stream> CudaDevice::CreateStream() {
  return std::make_unique<CudaStream>(*this, core_);
}

std::unique_ptr<Event> CudaDevice::CreateEvent() { return std::make_unique<CudaEvent>(); }

}  // namespace cuda

namespace {

CudaDeviceInfo Describe(int ordinal) {
  CudaDeviceInfo info;
  info.ordinal = ordinal;
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess) {
    info.name = properties.name;
    info.total_bytes = properties.totalGlobalMem;
    info.compute_capability = properties.major * 10 + properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.copy_engines = properties.asyncEngineCount;
  }
  char bus_id[32] = "";
  if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) == cudaSuccess) {
    info.pci_bus_id = NormalPciBusId(bus_id);
    info.numa_node = PciNumaNode("/sys", bus_id);
  }
  cudaGetLastError();
  return info;
}

const cuda::CudaDevice& Cuda(const Device& device) {
  CHECK_EQ(DeviceKindName(device.kind()), DeviceKindName(DeviceKind::kCuda));
  return static_cast<const cuda::CudaDevice&>(device);
}

}  // namespace

CudaMachine FindCudaDevices() {
  CudaMachine machine;
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    cudaGetLastError();
    machine.why_none =
        code == cudaErrorInsufficientDriver
            ? "no NVIDIA driver that CUDA 13 can use (580 or newer) is loaded"
            : fmt::format("no CUDA device: {}",
                          cudaGetErrorString(code != cudaSuccess ? code : cudaErrorNoDevice));
    return machine;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) machine.devices.push_back(Describe(ordinal));
  return machine;
}

std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options) {
  const CudaMachine machine = FindCudaDevices();
  const auto count = static_cast<int>(machine.devices.size());
  if (options.ordinal < 0 || options.ordinal >= count) {
    Fail(ErrorKind::kNotFound, "there is no device cuda:{}: {}", options.ordinal,
         count == 0 ? machine.why_none
                    : fmt::format("this machine has {}, the last of which is cuda:{} "
                                  "(CUDA_VISIBLE_DEVICES may hide some)",
                                  count, count - 1));
  }
  // The host sleeps while it waits for the device.
  const cudaError_t code =
      cudaInitDevice(options.ordinal, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid);
  if (code != cudaSuccess) {
    cudaGetLastError();
    Fail(ErrorKind::kUnavailable, "cuda:{} cannot be used: {} ({})", options.ordinal,
         cudaGetErrorString(code), cudaGetErrorName(code));
  }
  if (options.load_kernels != nullptr) {
    const cuda::CurrentDevice current(options.ordinal);
    const LaunchResult loaded = options.load_kernels();
    if (!loaded.ok()) {
      cudaGetLastError();
      Fail(
          ErrorKind::kUnavailable,
          "cuda:{} cannot load the kernels of {}: {}; they are compiled for compute capability 8.0 "
          "and newer",
          options.ordinal, loaded.kernel, loaded.message);
    }
  }
  return std::make_unique<cuda::CudaDevice>(machine.devices[static_cast<size_t>(options.ordinal)],
                                            options);
}

int ConnectCudaPeers(std::span<Device* const> devices) {
  std::set<int> ordinals;
  for (const Device* device : devices) ordinals.insert(Cuda(*device).ordinal());
  int connected = 0;
  for (const int from : ordinals) {
    const cuda::CurrentDevice current(from);
    for (const int to : ordinals) {
      int possible = 0;
      if (from == to || cudaDeviceCanAccessPeer(&possible, from, to) != cudaSuccess ||
          possible == 0) {
        continue;
      }
      const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
      if (code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled) ++connected;
      cudaGetLastError();
    }
  }
  return connected;
}

}  // namespace moesaic
