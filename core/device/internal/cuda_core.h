// cuda::Core: what the streams and events of one CudaDevice share: error mapping, the loss of the
// device, a stock of CUDA events, and the host functions that are queued. Internal to core/device
// (*_cuda.cpp).
//
// Owned by the device. Thread contract: safe from any thread; the lock is never held during a host
// function, nor during a call of the runtime that can wait.
//
// CUDA does not call the host functions of a context that has failed, and nobody may be polling: a
// watching thread looks after the device while host functions are queued, and tells them when it is
// lost.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/device/cuda_device.h"
#include "core/device/stream.h"
#include "core/device/stream_errors.h"

namespace moesaic::cuda {

class Core;

// The GPU of the calling thread, for as long as this lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = ordinal;
    if (before_ != ordinal) cudaSetDevice(ordinal);
    ordinal_ = ordinal;
  }
  ~CurrentDevice() {
    if (before_ != ordinal_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  int ordinal_ = 0;
};

// A host function on its way.
struct QueuedCall {
  Core* core = nullptr;
  const void* stream = nullptr;  // whose it is
  HostFunction function;
  ErrorCausesPtr causes;                // of its place in the stream
  std::shared_ptr<ErrorCause> outcome;  // what is queued behind it depends on
  std::optional<Error> refused;         // the runtime would not queue it
  bool taken = false;                   // somebody runs it, or has
  std::list<QueuedCall>::iterator self;
};

class Core {
 public:
  // Of a GPU whose context exists. `fetch_kernel`: see CudaDeviceOptions::fetch.
  Core(int ordinal, decltype(CudaDeviceOptions::fetch) fetch_kernel);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  int ordinal() const { return ordinal_; }

  // nullopt for cudaSuccess. A failure after which nothing on the device works loses the device.
  // `why`: what is known of it beside the code.
  std::optional<Error> Map(cudaError_t code, const char* call, const char* why = "")
      EXCLUDES(mutex_);
  std::optional<Error> lost() const EXCLUDES(mutex_);

  // Null: the runtime has none left (`error` says why).
  cudaEvent_t TakeEvent(std::optional<Error>& error) EXCLUDES(mutex_);
  void GiveEvent(cudaEvent_t event) EXCLUDES(mutex_);

  // What a graph has taken of the GPU, beside the arena; logs how much graphs have taken at every
  // doubling, and warns once when the GPU has little left.
  void CountGraph(uint64_t free_before, uint64_t free_after) EXCLUDES(mutex_);

  // Queues `function` on `handle`, a stream of this device.
  void QueueCall(const void* stream, cudaStream_t handle, HostFunction function,
                 ErrorCausesPtr causes, std::shared_ptr<ErrorCause> outcome) EXCLUDES(mutex_);
  bool HasCalls(const void* stream) const EXCLUDES(mutex_);

  // Operations of streams on words of host memory, of the driver: null where it has none.
  PFN_cuStreamWaitValue32_v11070 wait_value() const { return wait_value_; }
  PFN_cuStreamWriteValue32_v11070 write_value() const { return write_value_; }
  decltype(CudaDeviceOptions::fetch) fetch() const { return fetch_; }
  // Where kernels find pinned memory of the host; null: they do not.
  const void* KernelAddress(const void* host_memory) const;
  // Where they find such a word; 0: there are none, or the word is in memory that is not pinned.
  CUdeviceptr WordAddress(const uint32_t* word) const;
  void AwaitCalls(const void* stream) EXCLUDES(mutex_);  // of a lost device

 private:
  static void CUDART_CB RunFromStream(void* call);
  void Run(QueuedCall& call) EXCLUDES(mutex_);
  bool HasCallsLocked(const void* stream) const REQUIRES(mutex_);
  void Watch() EXCLUDES(mutex_);
  QueuedCall* NextToTell() REQUIRES(mutex_);

  const int ordinal_;
  decltype(CudaDeviceOptions::fetch) const fetch_;
  PFN_cuStreamWaitValue32_v11070 wait_value_ = nullptr;
  PFN_cuStreamWriteValue32_v11070 write_value_ = nullptr;
  cudaEvent_t probe_ = nullptr;  // never recorded: asking for it fails on a lost device only
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<Error> lost_ GUARDED_BY(mutex_);
  std::vector<cudaEvent_t> events_ GUARDED_BY(mutex_);
  // In the order in which they were queued. Those that the watching thread has run stay: the
  // runtime might still come for them.
  std::list<QueuedCall> calls_ GUARDED_BY(mutex_);
  int running_ GUARDED_BY(mutex_) = 0;
  uint64_t graph_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t told_graph_bytes_ GUARDED_BY(mutex_) = uint64_t{32} << 20;  // less is not worth a line
  bool warned_of_graphs_ GUARDED_BY(mutex_) = false;
  bool queued_ GUARDED_BY(mutex_) = false;  // something, since the watching thread last looked
  bool asleep_ GUARDED_BY(mutex_) = false;  // the watching thread, until it is woken
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace moesaic::cuda
