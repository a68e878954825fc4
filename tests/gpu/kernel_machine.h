// Where the kernels of a test run. Linked in one of two kinds: a GPU (kernel_machine_gpu.cpp), or
// the host (host/kernel_machine_host.cpp), where the same sources are compiled for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/device/device.h"
#include "kernels/cuda/kernels.h"

namespace moesaic {

class KernelMachine {
 public:
  virtual ~KernelMachine() = default;
  virtual Device& device(size_t index = 0) = 0;
  virtual const cuda::Kernels& kernels() const = 0;
};

// With so many devices of this capacity, which reach each other. Null where there is none:
// `why_not` says why.
std::unique_ptr<KernelMachine> MakeKernelMachine(uint64_t capacity_bytes, std::string& why_not,
                                                 size_t devices = 1);

}  // namespace moesaic
