// Memory and copies: the part of the CUDA runtime that is about them.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "core/base/check.h"
#include "tests/gpu/interpreter/runtime_call.h"

namespace moesaic::ptx {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t Pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// With a page on both sides that nobody may touch: the host would end there too.
void* Take(uint64_t bytes, MemoryKind kind) {
  auto* const all = static_cast<char*>(mmap(nullptr, Pages(bytes) + 2 * kPage, PROT_NONE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  CHECK(all != MAP_FAILED);
  char* const data = all + kPage;
  CHECK_EQ(mprotect(data, Pages(bytes), PROT_READ | PROT_WRITE), 0);
  if (kind == MemoryKind::kDevice) FillUnwritten(data, bytes);
  CHECK(Machine::Get().memory().Add(reinterpret_cast<uint64_t>(data), bytes, kind,
                                    ThisThread().device));
  return data;
}

// The runtime waits before it frees.
cudaError_t Give(const char* call, void* data, bool host) {
  if (data == nullptr) return cudaSuccess;
  Machine& machine = Machine::Get();
  const auto address = reinterpret_cast<uint64_t>(data);
  const auto region = machine.memory().FindRegion(address);
  if (!region || region->begin != address || (region->kind == MemoryKind::kDevice) == host) {
    machine.Report(fmt::format("{} of {}, which is no such memory", call, data));
    return Answer(cudaErrorInvalidValue);
  }
  const int devices = host ? machine.gpus() : region->device + 1;
  for (int device = host ? 0 : region->device; device < devices; ++device) {
    if (machine.Drain(device)) continue;
    machine.Report(
        fmt::format("{} waits for all that runs on GPU {}, which does not end", call, device));
  }
  const uint64_t bytes = *machine.memory().Remove(address);
  munmap(static_cast<char*>(data) - kPage, Pages(bytes) + 2 * kPage);
  return cudaSuccess;
}

// Whether a copy may use this memory; what is wrong with it is reported.
bool Usable(const char* what, const void* memory, uint64_t bytes, bool on_device, int device) {
  std::string why_not;
  const auto found =
      Machine::Get().memory().Find(reinterpret_cast<uint64_t>(memory), bytes, &why_not);
  if (!found) {
    Machine::Get().Report(fmt::format("the {} of a copy: {}", what, why_not));
    return false;
  }
  const bool is_device = found->kind == MemoryKind::kDevice;
  if (is_device == on_device && (!on_device || device < 0 || found->device == device)) return true;
  Machine::Get().Report(fmt::format(
      "the {} of a copy is {}", what,
      is_device ? fmt::format("memory of GPU {}", found->device) : "memory of the host"));
  return false;
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool to_device;
  bool from_device;
  int to_gpu = -1;  // -1: not said
  int from_gpu = -1;

  bool Possible() const {
    return Usable("destination", to, bytes, to_device, to_gpu) &&
           Usable("source", from, bytes, from_device, from_gpu);
  }
};

cudaError_t Queue(StreamQueue& stream, const Copy& copy) {
  if (!copy.Possible()) return Answer(cudaErrorInvalidValue);
  stream.Push([copy, device = stream.device()] {
    // Looked at again: what has been freed meanwhile is gone.
    if (copy.Possible()) {
      std::memmove(copy.to, copy.from, copy.bytes);
    } else {
      Machine::Get().Lose(device, cudaErrorIllegalAddress);
    }
  });
  return cudaSuccess;
}

}  // namespace
}  // namespace moesaic::ptx

using namespace moesaic::ptx;  // NOLINT: the functions below are in no namespace

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device)) return error;
  *total_bytes = Machine::kGpuBytes;
  *free_bytes = *total_bytes - Machine::Get().memory().DeviceBytes(device);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device, WhileCapturing::kForbidden)) return error;
  if (bytes > Machine::kGpuBytes - Machine::Get().memory().DeviceBytes(device)) {
    return Answer(cudaErrorMemoryAllocation);
  }
  *data = Take(bytes, MemoryKind::kDevice);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  BeginFreeing(__func__);
  return Give(__func__, data, false);
}

// All host memory that the runtime takes is mapped where addresses are unified.
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  if (const cudaError_t error = Begin(__func__, ThisThread().device, WhileCapturing::kForbidden)) {
    return error;
  }
  *data = Take(bytes, MemoryKind::kMapped);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  BeginFreeing(__func__);
  return Give(__func__, data, true);
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned flags) {
  if (const cudaError_t error = Begin(__func__, ThisThread().device, WhileCapturing::kForbidden)) {
    return error;
  }
  const bool mapped = (flags & cudaHostRegisterMapped) != 0;
  return Machine::Get().memory().Add(reinterpret_cast<uint64_t>(data), bytes,
                                     mapped ? MemoryKind::kMapped : MemoryKind::kPinned,
                                     ThisThread().device)
             ? cudaSuccess
             : Answer(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* data) {
  BeginFreeing(__func__);
  return Machine::Get().memory().Remove(reinterpret_cast<uint64_t>(data))
             ? cudaSuccess
             : Answer(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* data, unsigned) {
  if (const cudaError_t error = Begin(__func__, ThisThread().device)) return error;
  const auto region = Machine::Get().memory().FindRegion(reinterpret_cast<uint64_t>(data));
  if (!region || region->kind != MemoryKind::kMapped) return Answer(cudaErrorInvalidValue);
  *device_pointer = data;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  if (const cudaError_t error = Begin(__func__, ThisThread().device)) return error;
  const auto region = Machine::Get().memory().FindRegion(reinterpret_cast<uint64_t>(data));
  *attributes = {};
  attributes->type = !region                               ? cudaMemoryTypeUnregistered
                     : region->kind == MemoryKind::kDevice ? cudaMemoryTypeDevice
                                                           : cudaMemoryTypeHost;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  CheckCurrent(__func__, queue.device());
  const bool to_device = kind != cudaMemcpyDeviceToHost;
  const bool from_device = kind != cudaMemcpyHostToDevice;
  if (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault) {
    return Answer(cudaErrorInvalidMemcpyDirection);
  }
  return Queue(queue, {to, from, bytes, to_device, from_device, queue.device(), queue.device()});
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, size_t bytes,
                                cudaStream_t stream) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  CheckCurrent(__func__, queue.device());
  return Queue(queue, {to, from, bytes, true, true, to_gpu, from_gpu});
}

}  // extern "C"
