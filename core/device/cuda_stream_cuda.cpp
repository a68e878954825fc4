#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/short_sleep.h"
#include "core/device/host_word.h"
#include "core/device/internal/cuda_device_impl.h"
#include "core/device/internal/cuda_stream.h"

namespace moesaic::cuda {
namespace {

// How often a host function looks at the word that it waits for.
constexpr std::chrono::microseconds kWordPeriod{20};

// What a kernel copies: its one block is no match for a copy engine with more.
constexpr uint64_t kLittleBytes = 16 * 1024;
// Before a thread that waits for an event leaves it to the driver to wake it.
constexpr int kLooks = 200;
constexpr std::chrono::microseconds kLookPeriod{5};

// Returns when `query` no longer says that it is not ready, or after a while: what a step waits for
// comes soon, and to be woken by the driver takes some 50 us.
template <typename Query>
void LookForAWhile(Query query) {
  for (int look = 0; look < kLooks && query() == cudaErrorNotReady; ++look) {
    cudaGetLastError();
    ShortSleep(kLookPeriod);
  }
}

const CudaEvent& Own(const Event& event) {
  const auto* own = dynamic_cast<const CudaEvent*>(&event);
  CHECK(own != nullptr);  // an event of another kind of device
  return *own;
}

bool KnownToDriver(const std::byte* address) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type != cudaMemoryTypeUnregistered;
}

// Pools are registered as a whole, so that two of their bytes speak for those between.
bool Pinned(std::span<const std::byte> memory) {
  return KnownToDriver(&memory.front()) && KnownToDriver(&memory.back());
}

}  // namespace

std::optional<Error> Mark::ErrorWhenDone() const {
  if (error_) return error_;
  if (const Error* first = FirstError(causes_)) return *first;
  return std::nullopt;
}

Event::State Mark::Query() const {
  if (error_) return Event::State::kFailed;
  const CurrentDevice current(core_.ordinal());
  const cudaError_t code = cudaEventQuery(event_);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return Event::State::kPending;
  }
  // Of the call and not of the event, unless the device is lost: whoever asks asks again. One who
  // was told that the event has failed would wait for it, and so for what he himself must do.
  if (core_.Map(code, "cudaEventQuery")) {
    return core_.lost() ? Event::State::kFailed : Event::State::kPending;
  }
  return ErrorWhenDone() ? Event::State::kFailed : Event::State::kComplete;
}

std::optional<Error> Mark::Synchronize() const {
  if (error_) return error_;
  const CurrentDevice current(core_.ordinal());
  LookForAWhile([this] { return cudaEventQuery(event_); });
  if (std::optional<Error> error =
          core_.Map(cudaEventSynchronize(event_), "cudaEventSynchronize")) {
    return error;
  }
  return ErrorWhenDone();
}

Event::State CudaEvent::Query() const {
  const std::shared_ptr<const Mark> mark = latest();
  return mark != nullptr ? mark->Query() : State::kComplete;
}

std::optional<Error> CudaEvent::Synchronize() {
  const std::shared_ptr<const Mark> mark = latest();
  return mark != nullptr ? mark->Synchronize() : std::nullopt;
}

std::shared_ptr<const Mark> CudaEvent::latest() const {
  MutexLock lock(mutex_);
  return latest_;
}

void CudaEvent::Set(std::shared_ptr<const Mark> mark) {
  MutexLock lock(mutex_);
  latest_.swap(mark);
}

CudaGraph::~CudaGraph() {
  const CurrentDevice current(core_.ordinal());
  cudaGraphExecDestroy(exec_);
  cudaGetLastError();
}

CudaStream::CudaStream(Device& device, Core& core) : device_(device), core_(core) {
  const CurrentDevice current(core_.ordinal());
  ThrowIfFailed(core_.Map(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking),
                          "cudaStreamCreateWithFlags"));
  void* staging = nullptr;
  // Now, because taking pinned memory can wait for all that runs on the device.
  if (std::optional<Error> error = core_.Map(
          cudaHostAlloc(&staging, kStagingBytes, cudaHostAllocPortable), "cudaHostAlloc")) {
    cudaStreamDestroy(handle_);
    throw *error;
  }
  staging_ = static_cast<std::byte*>(staging);
}

CudaStream::~CudaStream() {
  const CurrentDevice current(core_.ordinal());
  core_.Map(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
  core_.AwaitCalls(this);
  cudaStreamDestroy(handle_);
  cudaFreeHost(staging_);
  cudaGetLastError();
}

void CudaStream::Note(cudaError_t code, const char* call) {
  if (code != cudaSuccess && Spoils()) {  // who queues it instead is told
    cudaGetLastError();
    return;
  }
  if (std::optional<Error> error = core_.Map(code, call)) errors_.Add(std::move(*error));
}

// By a kernel; false: not of so much, or of this memory.
bool CudaStream::Fetch(std::byte* to, std::span<const std::byte> from) {
  if (core_.fetch() == nullptr || from.size() > kLittleBytes || from.size() % 4 != 0) {
    return false;
  }
  const void* const address = core_.KernelAddress(from.data());
  const uintptr_t ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || ends % 16 != 0) return false;
  const LaunchResult result = core_.fetch()(to, address, from.size(), handle_);
  Note(static_cast<cudaError_t>(result.code), "a copy by a kernel");
  return true;
}

void CudaStream::CopyToDevice(const DeviceSpan& destination, std::span<const std::byte> source) {
  CHECK_EQ(destination.bytes(), source.size());
  CHECK(destination.device() == &device_ || source.empty());
  if (source.empty()) return;
  const CurrentDevice current(core_.ordinal());
  const bool pinned = Pinned(source);
  MutexLock lock(mutex_);
  if (Skips()) return;
  if (pinned && Fetch(destination.data(), source)) return;
  if (pinned) {
    Note(cudaMemcpyAsync(destination.data(), source.data(), source.size(), cudaMemcpyHostToDevice,
                         handle_),
         "cudaMemcpyAsync to the device");
    return;
  }
  if (Spoils()) return;
  for (uint64_t at = 0; at < source.size() && !InError(); at += kStagingBytes) {
    const uint64_t bytes = std::min<uint64_t>(kStagingBytes, source.size() - at);
    CallLocked([staging = staging_, from = source.data() + at, bytes](const Error* error) {
      if (error == nullptr) std::memcpy(staging, from, bytes);
    });
    Note(cudaMemcpyAsync(destination.data() + at, staging_, bytes, cudaMemcpyHostToDevice, handle_),
         "cudaMemcpyAsync to the device");
  }
}

void CudaStream::CopyToHost(std::span<std::byte> destination, const DeviceSpan& source) {
  CHECK_EQ(destination.size(), source.bytes());
  CHECK(source.device() == &device_ || destination.empty());
  if (destination.empty()) return;
  const CurrentDevice current(core_.ordinal());
  const bool pinned = Pinned(destination);
  MutexLock lock(mutex_);
  if (Skips()) return;
  if (pinned) {
    Note(cudaMemcpyAsync(destination.data(), source.data(), destination.size(),
                         cudaMemcpyDeviceToHost, handle_),
         "cudaMemcpyAsync to the host");
    return;
  }
  if (Spoils()) return;
  for (uint64_t at = 0; at < destination.size() && !InError(); at += kStagingBytes) {
    const uint64_t bytes = std::min<uint64_t>(kStagingBytes, destination.size() - at);
    Note(cudaMemcpyAsync(staging_, source.data() + at, bytes, cudaMemcpyDeviceToHost, handle_),
         "cudaMemcpyAsync to the host");
    CallLocked([staging = staging_, to = destination.data() + at, bytes](const Error* error) {
      if (error == nullptr) std::memcpy(to, staging, bytes);
    });
  }
}

void CudaStream::CopyBetween(const DeviceSpan& destination, const DeviceSpan& source) {
  CHECK_EQ(destination.bytes(), source.bytes());
  CHECK(destination.device() == &device_ || source.device() == &device_);
  CHECK(destination.device() != nullptr && device_.CanReach(*destination.device()));
  CHECK(source.device() != nullptr && device_.CanReach(*source.device()));
  if (source.bytes() == 0) return;
  const CurrentDevice current(core_.ordinal());
  const auto& to = static_cast<const CudaDevice&>(*destination.device());
  const auto& from = static_cast<const CudaDevice&>(*source.device());
  MutexLock lock(mutex_);
  if (Skips()) return;
  for (const CudaDevice* device : {&to, &from}) {
    if (std::optional<Error> lost = device->lost()) {
      errors_.Add(std::move(*lost));
      return;
    }
  }
  if (to.ordinal() == from.ordinal()) {
    Note(cudaMemcpyAsync(destination.data(), source.data(), source.bytes(),
                         cudaMemcpyDeviceToDevice, handle_),
         "cudaMemcpyAsync within the device");
  } else {
    Note(cudaMemcpyPeerAsync(destination.data(), to.ordinal(), source.data(), from.ordinal(),
                             source.bytes(), handle_),
         "cudaMemcpyPeerAsync");
  }
}

void CudaStream::CallLocked(HostFunction function) {
  ErrorCausesPtr causes = errors_.causes();
  std::shared_ptr<ErrorCause> outcome = errors_.AddPending();
  core_.QueueCall(this, handle_, std::move(function), std::move(causes), std::move(outcome));
}

void CudaStream::Call(HostFunction function) {
  CHECK(function != nullptr);
  const CurrentDevice current(core_.ordinal());
  MutexLock lock(mutex_);
  CHECK(capture_ == Capture::kNone);
  CallLocked(std::move(function));
}

void CudaStream::Record(Event& event) {
  CHECK(&Own(event) == &event);
  const CurrentDevice current(core_.ordinal());
  MutexLock lock(mutex_);
  CHECK(capture_ == Capture::kNone);
  std::optional<Error> error = core_.lost();
  cudaEvent_t recorded = nullptr;
  if (!error) recorded = core_.TakeEvent(error);
  if (!error) error = core_.Map(cudaEventRecord(recorded, handle_), "cudaEventRecord");
  static_cast<CudaEvent&>(event).Set(
      std::make_shared<const Mark>(core_, recorded, errors_.causes(), std::move(error)));
}

void CudaStream::Wait(const Event& event) {
  const std::shared_ptr<const Mark> mark = Own(event).latest();
  if (mark == nullptr) return;
  const CurrentDevice current(core_.ordinal());
  std::optional<Error> lost = mark->core().lost();
  MutexLock lock(mutex_);
  CHECK(capture_ == Capture::kNone);
  if (core_.lost()) return;
  errors_.Add(mark->causes());
  if (!lost && mark->event() == nullptr) lost = mark->Synchronize();  // why it was not recorded
  if (lost) {
    errors_.Add(std::move(*lost));
    return;
  }
  Note(cudaStreamWaitEvent(handle_, mark->event(), 0), "cudaStreamWaitEvent");
}

void CudaStream::WaitValue(const uint32_t* word, uint32_t value) {
  const CurrentDevice current(core_.ordinal());
  const CUdeviceptr address = core_.WordAddress(word);
  MutexLock lock(mutex_);
  if (Skips()) return;
  if (address != 0) {
    Note(static_cast<cudaError_t>(
             core_.wait_value()(handle_, address, value, CU_STREAM_WAIT_VALUE_EQ)),
         "cuStreamWaitValue32");
    return;
  }
  if (Spoils()) return;
  CallLocked([&core = core_, word, value](const Error* error) {
    if (error != nullptr) return;
    while (LoadWord(word) != value && !core.lost()) ShortSleep(kWordPeriod);
  });
}

void CudaStream::WriteValue(uint32_t* word, uint32_t value) {
  const CurrentDevice current(core_.ordinal());
  const CUdeviceptr address = core_.WordAddress(word);
  MutexLock lock(mutex_);
  if (Skips()) return;
  if (address != 0) {
    Note(static_cast<cudaError_t>(
             core_.write_value()(handle_, address, value, CU_STREAM_WRITE_VALUE_DEFAULT)),
         "cuStreamWriteValue32");
    return;
  }
  if (Spoils()) return;
  CallLocked([word, value](const Error* error) {
    if (error == nullptr) StoreWord(word, value);
  });
}

void CudaStream::BeginCapture() {
  const CurrentDevice current(core_.ordinal());
  MutexLock lock(mutex_);
  CHECK(capture_ == Capture::kNone);
  capture_ = Capture::kRefused;
  if (InError()) return;
  // Other threads may do what they like meanwhile.
  if (cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
    capture_ = Capture::kRecording;
  } else {
    cudaGetLastError();
  }
}

// Null: it cannot be had. Uploaded at once, so that all that it takes is seen.
cudaGraphExec_t CudaStream::Instantiate(cudaGraph_t graph) {
  size_t total = 0;
  size_t before = 0;
  size_t after = 0;
  const bool known = cudaMemGetInfo(&before, &total) == cudaSuccess;
  cudaGraphExec_t exec = nullptr;
  if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) return nullptr;
  Note(cudaGraphUpload(exec, handle_), "cudaGraphUpload");
  if (known && cudaMemGetInfo(&after, &total) == cudaSuccess) core_.CountGraph(before, after);
  return exec;
}

std::unique_ptr<Graph> CudaStream::EndCapture() {
  const CurrentDevice current(core_.ordinal());
  MutexLock lock(mutex_);
  CHECK(capture_ != Capture::kNone);
  const Capture capture = std::exchange(capture_, Capture::kNone);
  if (capture == Capture::kRefused) return nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  const bool ended = cudaStreamEndCapture(handle_, &graph) == cudaSuccess && graph != nullptr;
  if (ended && capture == Capture::kRecording && !InError()) exec = Instantiate(graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (exec != nullptr) return std::make_unique<CudaGraph>(core_, exec);
  cudaGetLastError();
  return nullptr;
}

void CudaStream::Replay(const Graph& graph) {
  const auto* const own = dynamic_cast<const CudaGraph*>(&graph);
  CHECK(own != nullptr && &own->core() == &core_);  // of another device
  const CurrentDevice current(core_.ordinal());
  MutexLock lock(mutex_);
  CHECK(capture_ == Capture::kNone);
  if (InError()) return;
  Note(cudaGraphLaunch(own->exec(), handle_), "cudaGraphLaunch");
}

void CudaStream::ClearError() {
  MutexLock lock(mutex_);
  CHECK(capture_ == Capture::kNone);
  errors_.Clear();
}

bool CudaStream::Idle() const {
  const CurrentDevice current(core_.ordinal());
  const cudaError_t code = cudaStreamQuery(handle_);
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  if (core_.Map(code, "cudaStreamQuery")) return core_.lost() && !core_.HasCalls(this);
  return true;
}

std::optional<Error> CudaStream::Synchronize() {
  const CurrentDevice current(core_.ordinal());
  ErrorCausesPtr causes;
  {
    MutexLock lock(mutex_);
    causes = errors_.causes();
  }
  LookForAWhile([this] { return cudaStreamQuery(handle_); });
  std::optional<Error> error = core_.Map(cudaStreamSynchronize(handle_), "cudaStreamSynchronize");
  if (std::optional<Error> lost = core_.lost()) {
    core_.AwaitCalls(this);
    return lost;
  }
  if (error) return error;
  if (const Error* first = FirstError(causes)) return *first;
  return std::nullopt;
}

void CudaStream::Launch(const KernelLaunch& launch) {
  const CurrentDevice current(core_.ordinal());
  MutexLock lock(mutex_);
  if (Skips()) return;
  const LaunchResult result = launch(handle_);
  if (result.ok()) return;
  if (Spoils()) {
    cudaGetLastError();
    return;
  }
  std::optional<Error> error =
      core_.Map(static_cast<cudaError_t>(result.code), result.kernel, result.message);
  if (error && error->kind() != ErrorKind::kUnavailable) {
    error = Error(ErrorKind::kInternal, error->what());
  }
  if (error) errors_.Add(std::move(*error));
}

}  // namespace moesaic::cuda
