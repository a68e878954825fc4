// LaunchResult: what queueing a kernel answers. Plain, because the CUDA compiler reads it too: nvcc
// cannot compile the headers of fmt, and with them error.h and check.h.
#pragma once

namespace moesaic {

struct LaunchResult {
  int code = 0;              // cudaError_t; 0: queued
  const char* kernel = "";   // which one it was
  const char* message = "";  // what the runtime says about the code
  bool ok() const { return code == 0; }
};

}  // namespace moesaic
