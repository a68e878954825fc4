// Where the kernels of a test run. Linked in one of two kinds: a GPU (kernel_machine_gpu.cpp), or
// the host (host/kernel_machine_host.cpp), where the same sources are compiled for it.
#pragma once

#include <memory>
#include <string>

#include "core/base/function_ref.h"
#include "core/device/device.h"
#include "core/device/launch_result.h"
#include "kernels/cuda/stream_handle.h"

namespace moesaic {

class KernelMachine {
 public:
  virtual ~KernelMachine() = default;
  virtual Device& device() = 0;
  // What the launch answers ends up in the stream's errors.
  virtual void Queue(Stream& stream, FunctionRef<LaunchResult(cuda::StreamHandle)> launch) = 0;
};

// Null where there is none: `why_not` says why.
std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string& why_not);

}  // namespace moesaic
