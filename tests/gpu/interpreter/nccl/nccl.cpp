// A libnccl.so.2 for tests: sends and receives of one process, as copies between emulated GPUs that
// are ordered as NCCL orders them: a pair begins when both streams have come to it, and both go on
// when it has ended. Where NCCL would wait for ever (a send that nobody receives, sizes that
// differ, a call outside of a group) this says so.
//
// Thread contract: NCCL's: calls for one communicator by one thread at a time.
#include "tests/gpu/interpreter/nccl/nccl.h"

#include <algorithm>
#include <vector>

struct ncclComm {
  int rank = 0;
  int gpu = 0;
  std::vector<int> gpus;  // [ranks]
};

namespace {

struct Half {
  ncclComm_t comm;
  int peer;
  void* data;
  size_t bytes;
  cudaStream_t stream;
};

struct Group {
  int depth = 0;
  std::vector<Half> sends;
  std::vector<Half> receives;
};

thread_local Group group;

class OnGpu {
 public:
  OnGpu() { cudaGetDevice(&before_); }
  ~OnGpu() { cudaSetDevice(before_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int before_ = 0;
};

// Lets `waits`, a stream of that GPU, wait for what `runs` has to do by now.
cudaError_t Order(int runs_on, cudaStream_t runs, int waits_on, cudaStream_t waits) {
  cudaEvent_t event = nullptr;
  cudaError_t error = cudaSetDevice(runs_on);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error != cudaSuccess) return error;
  error = cudaEventRecord(event, runs);
  if (error == cudaSuccess) error = cudaSetDevice(waits_on);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(waits, event, 0);
  cudaEventDestroy(event);
  return error;
}

cudaError_t Copy(const Half& send, const Half& receive) {
  const int from = send.comm->gpu;
  const int to = receive.comm->gpu;
  cudaError_t error = Order(from, send.stream, to, receive.stream);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyPeerAsync(receive.data, to, send.data, from, send.bytes, receive.stream);
  return error == cudaSuccess ? Order(to, receive.stream, from, send.stream) : error;
}

ncclResult_t Add(std::vector<Half>& halves, const Half& half) {
  if (half.comm == nullptr || half.data == nullptr || half.peer < 0 ||
      half.peer >= static_cast<int>(half.comm->gpus.size())) {
    return ncclInvalidArgument;
  }
  if (group.depth == 0) return ncclInvalidUsage;  // alone it waits for its peer, for ever
  halves.push_back(half);
  return ncclSuccess;
}

ncclResult_t RunGroup() {
  Group ended;
  std::swap(ended, group);
  const OnGpu restored;
  for (const Half& send : ended.sends) {
    const auto receive =
        std::find_if(ended.receives.begin(), ended.receives.end(), [&](const Half& other) {
          return other.comm->rank == send.peer && other.peer == send.comm->rank;
        });
    if (receive == ended.receives.end() || receive->bytes != send.bytes) return ncclInvalidUsage;
    if (Copy(send, *receive) != cudaSuccess) return ncclUnhandledCudaError;
    ended.receives.erase(receive);
  }
  return ended.receives.empty() ? ncclSuccess : ncclInvalidUsage;
}

}  // namespace

extern "C" {

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* gpus) {
  const std::vector<int> all(gpus, gpus + count);
  for (int rank = 0; rank < count; ++rank) {
    // Two ranks on one GPU: NCCL refuses them too.
    if (std::count(all.begin(), all.end(), gpus[rank]) > 1) return ncclInvalidUsage;
  }
  for (int rank = 0; rank < count; ++rank) comms[rank] = new ncclComm{rank, gpus[rank], all};
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  return RunGroup();
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(group.sends, {comm, peer, const_cast<void*>(data), count, stream});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(group.receives, {comm, peer, data, count, stream});
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
  }
  return "unknown result code";
}

}  // extern "C"
