// How a library that stands in for one of NVIDIA's (cublas/) comes to the emulated GPUs. Its calls
// are counted and fail as those of the runtime do, its work is carried out in stream order, or is
// recorded, and may touch only what a kernel could. Exported by the program to the library.
//
// Thread contract: safe from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace moesaic::ptx {

// Begins a call that is about the current GPU: cudaSuccess, or what it must answer at once.
// `records`: it may be called by a thread that captures a stream.
cudaError_t BeginLibraryCall(const char* call, bool records);

// The current GPU, and that of a stream.
int CurrentGpu();
int GpuOf(cudaStream_t stream);

void ReportDefect(const std::string& defect);

// Memory of the stream's GPU that the work touches, from the first byte to the last.
struct TouchedMemory {
  const char* what = "";
  const void* data = nullptr;
  uint64_t bytes = 0;
};

// Queues `work` on a stream. Memory that is not all in one block of its GPU is reported; when it is
// found at once nothing is queued (cudaErrorInvalidValue), and when the work is to be done the GPU
// is lost.
cudaError_t QueueLibraryWork(const char* call, cudaStream_t stream,
                             const std::vector<TouchedMemory>& memory, std::function<void()> work);

}  // namespace moesaic::ptx
