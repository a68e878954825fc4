// The CUDA kernels compiled for the host: for emulated devices, whose memory is the host's.
#pragma once

#include "kernels/cuda/kernels.h"

namespace moesaic {

// Safe from any thread; one kernel runs at a time.
const cuda::Kernels& HostKernels();

}  // namespace moesaic
