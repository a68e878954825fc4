#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/device/internal/cuda_core.h"

namespace moesaic::cuda {
namespace {

// How often the device is asked whether it still lives, while host functions are queued.
constexpr std::chrono::milliseconds kWatchPeriod{100};

// Of the driver, which nothing is linked with; null: it has no such function.
template <typename Function>
Function FromDriver(const char* name, unsigned int version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<Function>(function);
}

constexpr unsigned int kStreamWordsVersion = 11070;  // from which on every device has them

// Below this the driver may not find what it needs for a launch.
constexpr uint64_t kLittleLeftBytes = uint64_t{256} << 20;

}  // namespace

Core::Core(int ordinal, decltype(CudaDeviceOptions::fetch) fetch_kernel)
    : ordinal_(ordinal), fetch_(fetch_kernel) {
  const CurrentDevice current(ordinal_);
  ThrowIfFailed(
      Map(cudaEventCreateWithFlags(&probe_, cudaEventDisableTiming), "cudaEventCreateWithFlags"));
  wait_value_ =
      FromDriver<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", kStreamWordsVersion);
  write_value_ =
      FromDriver<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", kStreamWordsVersion);
  watcher_ = std::thread([this] { Watch(); });
}

Core::~Core() {
  {
    MutexLock lock(mutex_);
    CHECK(!HasCallsLocked(nullptr));  // a device outlives its streams
    stop_ = true;
    changed_.NotifyAll();
  }
  watcher_.join();
  const CurrentDevice current(ordinal_);
  MutexLock lock(mutex_);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  cudaEventDestroy(probe_);
  cudaGetLastError();
}

std::optional<Error> Core::Map(cudaError_t code, const char* call, const char* why) {
  if (code == cudaSuccess) return std::nullopt;
  cudaGetLastError();  // it is in hand now: the next launch is not to blame
  Error error(code == cudaErrorMemoryAllocation ? ErrorKind::kResourceExhausted : ErrorKind::kIo,
              fmt::format("cuda:{}: {} failed: {} ({})", ordinal_, call,
                          *why != '\0' ? why : cudaGetErrorString(code), cudaGetErrorName(code)));
  // An error of the context comes back from whatever is called next.
  const bool alive = probe_ == nullptr || cudaEventQuery(probe_) == cudaSuccess;
  if (alive) return error;
  cudaGetLastError();
  MutexLock lock(mutex_);
  if (!lost_) {
    lost_ = Error(ErrorKind::kUnavailable,
                  fmt::format("device cuda:{} is lost: {}; start again without it, or look for its "
                              "errors in the kernel's log (Xid)",
                              ordinal_, error.what()));
    changed_.NotifyAll();
  }
  return lost_;
}

std::optional<Error> Core::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

const void* Core::KernelAddress(const void* host_memory) const {
  void* address = nullptr;
  if (cudaHostGetDevicePointer(&address, const_cast<void*>(host_memory), 0) == cudaSuccess) {
    return address;
  }
  cudaGetLastError();
  return nullptr;
}

CUdeviceptr Core::WordAddress(const uint32_t* word) const {
  if (wait_value_ == nullptr || write_value_ == nullptr) return 0;
  return reinterpret_cast<CUdeviceptr>(KernelAddress(word));
}

cudaEvent_t Core::TakeEvent(std::optional<Error>& error) {
  {
    MutexLock lock(mutex_);
    if (!events_.empty()) {
      const cudaEvent_t event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  const CurrentDevice current(ordinal_);
  cudaEvent_t event = nullptr;
  // Blocking: the host sleeps while it waits for one.
  error = Map(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
              "cudaEventCreateWithFlags");
  return error ? nullptr : event;
}

void Core::GiveEvent(cudaEvent_t event) {
  if (event == nullptr) return;
  MutexLock lock(mutex_);
  events_.push_back(event);
}

void Core::CountGraph(uint64_t free_before, uint64_t free_after) {
  MutexLock lock(mutex_);
  graph_bytes_ += free_before > free_after ? free_before - free_after : 0;
  if (graph_bytes_ >= 2 * told_graph_bytes_) {
    told_graph_bytes_ = graph_bytes_;
    LogInfo("cuda:{}: graphs have taken {} of what --gpu-memory leaves, {} are free", ordinal_,
            FormatBytes(graph_bytes_), FormatBytes(free_after));
  }
  if (free_after < kLittleLeftBytes && !std::exchange(warned_of_graphs_, true)) {
    LogWarn("cuda:{}: {} are free after graphs have taken {}; lower --gpu-memory", ordinal_,
            FormatBytes(free_after), FormatBytes(graph_bytes_));
  }
}

void Core::QueueCall(const void* stream, cudaStream_t handle, HostFunction function,
                     ErrorCausesPtr causes, std::shared_ptr<ErrorCause> outcome) {
  QueuedCall* call = nullptr;
  {
    MutexLock lock(mutex_);
    call = &calls_.emplace_back();
    call->self = std::prev(calls_.end());
    call->core = this;
    call->stream = stream;
    call->function = std::move(function);
    call->causes = std::move(causes);
    call->outcome = std::move(outcome);
    queued_ = true;
    if (asleep_ || lost_) changed_.NotifyAll();
    if (lost_) return;  // the watching thread tells it
  }
  std::optional<Error> error =
      Map(cudaLaunchHostFunc(handle, &Core::RunFromStream, call), "cudaLaunchHostFunc");
  if (!error) return;
  MutexLock lock(mutex_);
  call->refused = std::move(error);
  changed_.NotifyAll();
}

bool Core::HasCalls(const void* stream) const {
  MutexLock lock(mutex_);
  return HasCallsLocked(stream);
}

void Core::AwaitCalls(const void* stream) {
  MutexLock lock(mutex_);
  while (HasCallsLocked(stream)) changed_.Wait(mutex_);
}

// That have not run; null: of any stream.
bool Core::HasCallsLocked(const void* stream) const {
  for (const QueuedCall& call : calls_) {
    if (call.function != nullptr && (stream == nullptr || call.stream == stream)) return true;
  }
  return false;
}

void CUDART_CB Core::RunFromStream(void* data) {
  auto& call = *static_cast<QueuedCall*>(data);
  Core& core = *call.core;
  {
    MutexLock lock(core.mutex_);
    if (call.taken) return;
    call.taken = true;
    ++core.running_;
  }
  core.Run(call);
  // Gone before the lock is: from then on the device may go.
  MutexLock lock(core.mutex_);
  core.calls_.erase(call.self);
  --core.running_;
  if (core.lost_) core.changed_.NotifyAll();
}

void Core::Run(QueuedCall& call) {
  std::optional<Error> error = lost();
  if (!error) error = call.refused;
  if (!error) {
    if (const Error* first = FirstError(call.causes)) error = *first;
  }
  std::optional<Error> thrown;
  try {
    call.function(error ? &*error : nullptr);
  } catch (const std::exception& exception) {
    thrown = Error(ErrorKind::kInternal,
                   fmt::format("a host function of a stream threw: {}", exception.what()));
  } catch (...) {
    thrown = Error(ErrorKind::kInternal, "a host function of a stream threw");
  }
  if (!thrown) thrown = call.refused;
  if (thrown) {
    call.outcome->Fail(std::move(*thrown));
  } else {
    call.outcome->Succeed();
  }
  HostFunction gone;
  {
    MutexLock lock(mutex_);
    gone.swap(call.function);
  }
}

// Null while there is none, or while the runtime runs one that may be before it.
QueuedCall* Core::NextToTell() {
  if (running_ > 0) return nullptr;
  for (QueuedCall& call : calls_) {
    if (!call.taken && (lost_ || call.refused)) return &call;
  }
  return nullptr;
}

void Core::Watch() {
  // A new thread's GPU is the first one, on which asking would start a context.
  const CurrentDevice current(ordinal_);
  MutexLock lock(mutex_);
  while (!stop_) {
    if (QueuedCall* call = NextToTell()) {
      call->taken = true;
      ++running_;
      mutex_.Unlock();
      Run(*call);
      mutex_.Lock();
      --running_;
      changed_.NotifyAll();
      continue;
    }
    if (lost_ || (!queued_ && !HasCallsLocked(nullptr))) {
      asleep_ = true;
      changed_.Wait(mutex_);
      asleep_ = false;
      continue;
    }
    queued_ = false;
    const auto deadline = std::chrono::steady_clock::now() + kWatchPeriod;
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    mutex_.Unlock();
    Map(cudaEventQuery(probe_), "cudaEventQuery while host functions wait");
    mutex_.Lock();
  }
}

}  // namespace moesaic::cuda
