// cuda::CudaDevice: a GPU, or a part of one, as a Device. Internal to core/device (*_cuda.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/device/cuda_device.h"
#include "core/device/internal/cuda_core.h"
#include "core/device/memory_arena.h"

namespace moesaic::cuda {

// Registers memory with the driver, for all GPUs of the process.
class CudaHostPinner : public HostPinner {
 public:
  explicit CudaHostPinner(int ordinal) : ordinal_(ordinal) {}
  [[nodiscard]] std::optional<Error> Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;

 private:
  const int ordinal_;
};

// Memory of a GPU. Throws Error(kResourceExhausted).
class DeviceMemory {
 public:
  DeviceMemory(int ordinal, uint64_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const int ordinal_;
  void* data_ = nullptr;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const CudaDeviceInfo& info, const CudaDeviceOptions& options);

  const std::string& name() const override { return name_; }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  int numa_node() const override { return numa_node_; }
  uint64_t capacity_bytes() const override { return arena_.capacity_bytes(); }
  uint64_t used_bytes() const override { return arena_.used_bytes(); }
  uint64_t largest_free_bytes() const override { return arena_.largest_free_bytes(); }
  std::optional<DeviceBuffer> Allocate(uint64_t bytes) override;
  std::unique_ptr<Stream> CreateStream() override;
  std::unique_ptr<Event> CreateEvent() override;
  HostPinner& host_pinner() override { return pinner_; }
  bool KernelsReach(std::span<const std::byte> host_memory) const override;
  bool CanReach(const Device& other) const override { return other.kind() == DeviceKind::kCuda; }
  // Some 25 us each on an H100, one behind the other.
  bool calls_are_slow() const override { return true; }
  std::optional<Error> lost() const override { return core_.lost(); }

  int ordinal() const { return core_.ordinal(); }

 private:
  const std::string name_;
  const int numa_node_;
  Core core_;
  DeviceMemory memory_;
  MemoryArena arena_;
  CudaHostPinner pinner_;
};

}  // namespace moesaic::cuda
