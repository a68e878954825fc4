// What every function of the emulated CUDA runtime begins and ends with. Internal to runtime_*.cpp,
// with the types behind the handles that the runtime gives out.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "core/base/mutex.h"
#include "tests/gpu/interpreter/machine.h"
#include "tests/gpu/interpreter/stream_queue.h"

namespace moesaic::ptx {

// What CUDA keeps for each thread.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_host_function = false;
  StreamQueue* capturing = nullptr;  // by cudaStreamCaptureModeThreadLocal
};
ThreadState& ThisThread();

// Whether a thread may call a function while it captures a stream.
enum class WhileCapturing : bool { kForbidden, kAllowed };

// Counts the call and says what it must answer at once, because `device` is lost, or because the
// call was chosen to fail; cudaSuccess: go on. A call where none may be is reported.
cudaError_t Begin(const char* call, int device,
                  WhileCapturing capturing = WhileCapturing::kAllowed);
// The same for a call that frees: it is carried out on a lost GPU too, and cannot fail.
void BeginFreeing(const char* call, WhileCapturing capturing = WhileCapturing::kForbidden);
// Reports a call about something of a GPU that is not the calling thread's: CUDA answers from, or
// starts a context on, the GPU of the thread.
void CheckCurrent(const char* call, int device);
// Remembers an error for cudaGetLastError.
cudaError_t Answer(cudaError_t error);

}  // namespace moesaic::ptx

struct CUstream_st {
  explicit CUstream_st(int gpu) : queue(gpu) {}
  moesaic::ptx::StreamQueue queue;
};

struct CUevent_st {
  explicit CUevent_st(int gpu) : device(gpu) {}
  const int device;
  moesaic::Mutex mutex;
  std::shared_ptr<moesaic::ptx::Completion> latest GUARDED_BY(mutex);
};

struct CUgraph_st {
  moesaic::ptx::WorkList work;
};

struct CUgraphExec_st {
  int device = 0;
  std::shared_ptr<const moesaic::ptx::WorkList> work;
};
