// CUDA devices as Devices (core/device/device.h). This header is plain C++ and part of every build;
// a build without CUDA finds no devices, and says why when it is asked for one.
//
// Owned like any Device. Thread contract: safe from any thread; device memory, streams and events
// belong to the CUDA context that the process has on the GPU. Several devices in one process, also
// several on one GPU, each with an arena of its own.
//
// What differs from the emulated device: a copy that is queued cannot be taken back, so that behind
// a host function that throws, or a wait for a failed event of another stream, copies that were
// queued before the failure was known still run; events and host functions behind it get the error
// all the same. A device on which anything fails asynchronously (an illegal address, an ECC error)
// is lost: CUDA gives nothing back of such a context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/device/launch_result.h"

struct CUstream_st;

namespace moesaic {

struct CudaDeviceInfo {
  int ordinal = 0;
  std::string name;        // "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;  // "0000:1b:00.0"
  int numa_node = -1;      // -1: not known
  uint64_t total_bytes = 0;
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  int copy_engines = 0;  // 2: copies in both directions at once
};

struct CudaMachine {
  std::vector<CudaDeviceInfo> devices;
  std::string why_none;  // for people; empty when there are devices
};

// Does not start a context on any device.
CudaMachine FindCudaDevices();

struct CudaDeviceOptions {
  int ordinal = 0;
  uint64_t capacity_bytes = 0;  // of the arena (--gpu-memory), taken at once
  // Loads the kernels that the device will be given (cuda::LoadKernels of kernels/cuda/kernels.h);
  // null: there are none. CUDA would load each when it is launched first, and may wait until all
  // that runs on the GPU has ended, such as a graph that waits for a word.
  LaunchResult (*load_kernels)() = nullptr;
  // Copies little from memory of the host, aligned to 16 bytes and of a multiple of 4, by a kernel
  // (cuda::FetchFromHost of kernels/cuda/kernels.h), which need not wait for what the copy engine
  // has in hand. Null: that engine copies everything.
  LaunchResult (*fetch)(void* to, const void* from, uint64_t bytes, CUstream_st* stream) = nullptr;
};

// Throws Error(kUnsupported) in a build without CUDA, kNotFound when there is no such GPU,
// kUnavailable when it cannot run the kernels, and kResourceExhausted when it has not got the
// memory.
std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options);

// Lets the GPUs of these devices (CUDA ones, made by CreateCudaDevice) read each other's memory
// directly where the machine can; elsewhere copies between them go through host memory, which the
// driver sees to. Returns the number of ordered pairs of GPUs that are connected directly.
int ConnectCudaPeers(std::span<Device* const> devices);

}  // namespace moesaic
