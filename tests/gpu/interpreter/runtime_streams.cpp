// Streams, events, graphs and operations on words: the part of the CUDA runtime and driver that is
// about them.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/gpu/interpreter/runtime_call.h"

namespace moesaic::ptx {
namespace {

constexpr std::chrono::microseconds kWordPeriod{20};

std::shared_ptr<Completion> LatestOf(cudaEvent_t event) {
  MutexLock lock(event->mutex);
  return event->latest;
}

// A call about a stream that is not allowed while the stream is captured.
bool RefusedByCapture(const char* call, StreamQueue& stream) {
  if (!stream.capturing()) return false;
  Machine::Get().Report(fmt::format("{} on a stream that is captured", call));
  stream.SpoilCapture();
  return true;
}

// Null: this is no word that streams may use.
uint32_t* WordAt(CUdeviceptr address) {
  const auto found = Machine::Get().memory().Find(address, sizeof(uint32_t));
  if (!found || found->kind == MemoryKind::kPinned || address % sizeof(uint32_t) != 0) {
    return nullptr;
  }
  return reinterpret_cast<uint32_t*>(address);
}

// cuStreamWaitValue32, cuStreamWriteValue32.
CUresult CUDAAPI WaitWord(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  const int device = stream->queue.device();
  if (Begin("cuStreamWaitValue32", device) != cudaSuccess) return CUDA_ERROR_UNKNOWN;
  const uint32_t* const word = WordAt(address);
  if (word == nullptr || flags != CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_INVALID_VALUE;
  stream->queue.Push([word, value, device] {
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value &&
           Machine::Get().lost(device) == cudaSuccess) {
      std::this_thread::sleep_for(kWordPeriod);
    }
  });
  return CUDA_SUCCESS;
}
CUresult CUDAAPI WriteWord(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  if (Begin("cuStreamWriteValue32", stream->queue.device()) != cudaSuccess) {
    return CUDA_ERROR_UNKNOWN;
  }
  uint32_t* const word = WordAt(address);
  if (word == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream->queue.Push([word, value] { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); });
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace moesaic::ptx

using namespace moesaic::ptx;  // NOLINT: the functions below are in no namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device)) return error;
  *stream = new CUstream_st(device);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  BeginFreeing(__func__);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device(), WhileCapturing::kForbidden)) {
    return error;
  }
  CheckCurrent(__func__, queue.device());
  if (RefusedByCapture(__func__, queue)) return Answer(cudaErrorStreamCaptureUnsupported);
  queue.Drain();
  return Answer(Machine::Get().lost(queue.device()));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device(), WhileCapturing::kForbidden)) {
    return error;
  }
  CheckCurrent(__func__, queue.device());
  if (RefusedByCapture(__func__, queue)) return Answer(cudaErrorStreamCaptureUnsupported);
  return Answer(queue.Idle() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  CheckCurrent(__func__, queue.device());
  queue.Push([function, data] {
    ThisThread().in_host_function = true;
    function(data);
    ThisThread().in_host_function = false;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device)) return error;
  *event = new CUevent_st(device);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  BeginFreeing(__func__, WhileCapturing::kAllowed);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  CheckCurrent(__func__, queue.device());
  if (event->device != queue.device()) return Answer(cudaErrorInvalidResourceHandle);
  if (RefusedByCapture(__func__, queue)) return Answer(cudaErrorStreamCaptureUnsupported);
  auto completion = std::make_shared<Completion>();
  {
    moesaic::MutexLock lock(event->mutex);
    event->latest = completion;
  }
  queue.Push([completion = std::move(completion)] { completion->Set(); }, true);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = Begin(__func__, event->device, WhileCapturing::kForbidden)) {
    return error;
  }
  CheckCurrent(__func__, event->device);
  const auto completion = LatestOf(event);
  return Answer(completion == nullptr || completion->IsSet() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = Begin(__func__, event->device, WhileCapturing::kForbidden)) {
    return error;
  }
  CheckCurrent(__func__, event->device);
  if (const auto completion = LatestOf(event)) completion->Wait();
  return Answer(Machine::Get().lost(event->device));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  CheckCurrent(__func__, queue.device());
  if (RefusedByCapture(__func__, queue)) return Answer(cudaErrorStreamCaptureUnsupported);
  auto completion = LatestOf(event);
  if (completion == nullptr) return cudaSuccess;
  queue.Push([completion = std::move(completion)] { completion->Wait(); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  if (mode != cudaStreamCaptureModeThreadLocal) return Answer(cudaErrorNotSupported);
  if (!queue.BeginCapture()) return Answer(cudaErrorIllegalState);
  ThisThread().capturing = &queue;
  return cudaSuccess;
}
// The capture ends even when the call fails.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  StreamQueue& queue = stream->queue;
  *graph = nullptr;
  if (ThisThread().capturing == &queue) ThisThread().capturing = nullptr;
  bool was_capturing = false;
  auto work = queue.EndCapture(was_capturing);
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  if (!was_capturing) return Answer(cudaErrorIllegalState);
  if (work == nullptr) return Answer(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(*work)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const int device = ThisThread().device;
  if (const cudaError_t error = Begin(__func__, device, WhileCapturing::kForbidden)) return error;
  *exec = new CUgraphExec_st{device, std::make_shared<const WorkList>(graph->work)};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = Begin(__func__, stream->queue.device())) return error;
  CheckCurrent(__func__, exec->device);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  StreamQueue& queue = stream->queue;
  if (const cudaError_t error = Begin(__func__, queue.device())) return error;
  CheckCurrent(__func__, exec->device);
  // Not as one piece of work: one that is lost in the middle must not go on.
  for (const Work& work : *exec->work) queue.Push([work, all = exec->work] { work(); });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  BeginFreeing(__func__, WhileCapturing::kAllowed);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  BeginFreeing(__func__, WhileCapturing::kAllowed);
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (const cudaError_t error = Begin(__func__, ThisThread().device)) return error;
  const bool words = Machine::Get().settings().words;
  *function = nullptr;
  if (words && std::strcmp(name, "cuStreamWaitValue32") == 0) {
    *function = reinterpret_cast<void*>(WaitWord);
  } else if (words && std::strcmp(name, "cuStreamWriteValue32") == 0) {
    *function = reinterpret_cast<void*>(WriteWord);
  }
  *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
