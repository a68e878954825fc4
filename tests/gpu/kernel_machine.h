// Where the kernels of a test run. Linked in one of two kinds: a GPU (kernel_machine_gpu.cpp), or
// the host (host/kernel_machine_host.cpp), where the same sources are compiled for it.
#pragma once

#include <memory>
#include <string>

#include "core/device/device.h"
#include "kernels/cuda/kernels.h"

namespace moesaic {

class KernelMachine {
 public:
  virtual ~KernelMachine() = default;
  virtual Device& device() = 0;
  virtual const cuda::Kernels& kernels() const = 0;
};

// Null where there is none: `why_not` says why.
std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string& why_not);

}  // namespace moesaic
