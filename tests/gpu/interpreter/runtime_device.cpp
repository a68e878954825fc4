// GPUs, errors, and kernels: the part of the CUDA runtime that is about them, as the CUDA 13
// documentation has it.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/gpu/interpreter/block.h"
#include "tests/gpu/interpreter/defect.h"
#include "tests/gpu/interpreter/fat_binary.h"
#include "tests/gpu/interpreter/runtime_call.h"

namespace moesaic::ptx {
namespace {

constexpr uint32_t kMostThreads = 1024;
constexpr uint32_t kMostSharedBytes = 48 << 10;  // without asking for more

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
};

const ErrorText* Find(cudaError_t error) {
  for (const ErrorText& text : kErrors) {
    if (text.error == error) return &text;
  }
  return nullptr;
}

bool IsGpu(int device) { return device >= 0 && device < Machine::Get().gpus(); }

cudaError_t ErrorOf(const Defect& defect) {
  switch (defect.kind()) {
    case Defect::Kind::kAddress:
      return cudaErrorIllegalAddress;
    case Defect::Kind::kAlignment:
      return cudaErrorMisalignedAddress;
    default:
      return cudaErrorLaunchFailure;
  }
}

void RunOnGpu(const Kernel& kernel, Dim grid, Dim threads, const std::vector<std::byte>& parameters,
              int device) {
  Machine& machine = Machine::Get();
  try {
    MutexLock lock(machine.running());
    RunKernel(kernel, grid, threads, parameters, {machine.memory(), device, machine.peers(device)});
  } catch (const Defect& defect) {
    machine.Report(defect.what());
    machine.Lose(device, ErrorOf(defect));
  }
}

// Why a kernel cannot be launched in this way.
cudaError_t CheckLaunch(const Kernel& kernel, Dim grid, Dim threads, size_t dynamic_shared) {
  if (grid.count() == 0 || threads.count() == 0 || threads.count() > kMostThreads ||
      threads.z > 64 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (kernel.shared_bytes + dynamic_shared > kMostSharedBytes) return cudaErrorInvalidValue;
  if (kernel.most_threads == 0) {
    Machine::Get().Report(
        fmt::format("{} has no __launch_bounds__: it may need more registers "
                    "than a block of {} threads has",
                    kernel.name, threads.count()));
  } else if (threads.count() > kernel.most_threads) {
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

// The worst case of lazy loading: the first launch of a kernel waits for all that runs on its GPU.
void Load(int device, const Kernel& kernel, const void* function) {
  Machine& machine = Machine::Get();
  if (!machine.LoadKernel(device, function) || !machine.settings().lazy) return;
  if (machine.Drain(device)) return;
  machine.Report(
      fmt::format("{} is launched for the first time, and waits to be loaded until all "
                  "that runs on GPU {} has ended, which it does not",
                  kernel.name, device));
}

}  // namespace
}  // namespace moesaic::ptx

using namespace moesaic::ptx;  // NOLINT: the functions below are in no namespace

extern "C" {

struct FatBinaryWrapper {
  int magic;
  int version;
  const std::byte* data;
  void* unused;
};

void** __cudaRegisterFatBinary(void* wrapper) {
  const std::byte* data = static_cast<FatBinaryWrapper*>(wrapper)->data;
  try {
    Machine::Get().RegisterModule(data, PtxOf(data));
  } catch (const moesaic::Error& error) {
    fmt::print(stderr, "PTX interpreter: {}\n", error.what());
    std::abort();
  }
  return reinterpret_cast<void**>(const_cast<std::byte*>(data));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** module, const char* function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  Machine::Get().RegisterFunction(module, function, name);
}

// Of launches as kernel<<<...>>>, of which nvcc makes code though nobody has written one.
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) { std::abort(); }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { std::abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  std::abort();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device)) return error;
  StreamQueue& stream = config->stream->queue;
  const Kernel* const kernel = Machine::Get().FindKernel(function);
  if (kernel == nullptr || config->numAttrs != 0) return Answer(cudaErrorInvalidValue);
  if (stream.device() != device) return Answer(cudaErrorInvalidResourceHandle);
  const Dim grid = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
  const Dim threads = {config->blockDim.x, config->blockDim.y, config->blockDim.z};
  if (const cudaError_t error = CheckLaunch(*kernel, grid, threads, config->dynamicSmemBytes)) {
    return Answer(error);
  }
  Load(device, *kernel, function);
  std::vector<std::byte> parameters(kernel->parameter_bytes);
  for (size_t p = 0; p < kernel->parameters.size(); ++p) {
    const Parameter& parameter = kernel->parameters[p];
    std::memcpy(parameters.data() + parameter.offset, arguments[p], parameter.bytes);
  }
  stream.Push([kernel, grid, threads, device, parameters = std::move(parameters)] {
    RunOnGpu(*kernel, grid, threads, parameters, device);
  });
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device)) return error;
  const Kernel* const kernel = Machine::Get().FindKernel(function);
  if (kernel == nullptr) return Answer(cudaErrorInvalidDeviceFunction);
  Load(device, *kernel, function);
  *attributes = {};
  attributes->sharedSizeBytes = kernel->shared_bytes;
  attributes->localSizeBytes = kernel->local_bytes;
  attributes->maxThreadsPerBlock =
      static_cast<int>(kernel->most_threads == 0 ? kMostThreads : kernel->most_threads);
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = ThisThread().last_error;
  ThisThread().last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* text = Find(error);
  return text != nullptr ? text->text : "another error";
}
const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* text = Find(error);
  return text != nullptr ? text->name : "cudaErrorUnknown";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Machine::Get().gpus();
  return *count > 0 ? cudaSuccess : Answer(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = ThisThread().device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  BeginFreeing(__func__, WhileCapturing::kAllowed);
  if (!IsGpu(device)) return Answer(cudaErrorInvalidDevice);
  ThisThread().device = device;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  if (!IsGpu(device)) return Answer(cudaErrorInvalidDevice);
  return Begin(__func__, device);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!IsGpu(device)) return Answer(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "PTX interpreter");
  properties->totalGlobalMem = Machine::kGpuBytes;
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->asyncEngineCount = 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  if (!IsGpu(device)) return Answer(cudaErrorInvalidDevice);
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!IsGpu(device) || !IsGpu(peer)) return Answer(cudaErrorInvalidDevice);
  *can = device != peer ? 1 : 0;
  return Begin(__func__, device);
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device)) return error;
  if (!IsGpu(peer) || peer == device) return Answer(cudaErrorInvalidDevice);
  if ((Machine::Get().peers(device) >> peer & 1) != 0) {
    return Answer(cudaErrorPeerAccessAlreadyEnabled);
  }
  Machine::Get().EnablePeer(device, peer);
  return cudaSuccess;
}

}  // extern "C"
