#include "core/device/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/shared_library.h"
#include "core/device/device.h"

namespace moesaic {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr std::chrono::milliseconds kWatchPeriod{100};

// What is used of the library, which stays loaded.
struct Nccl {
  decltype(&ncclCommInitAll) comm_init_all = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
};

Nccl LoadNccl() {
  const SharedLibrary library("NCCL", kLibrary, "install it, or use peer copies");
  Nccl nccl;
  library.Find(nccl.comm_init_all, "ncclCommInitAll");
  library.Find(nccl.comm_destroy, "ncclCommDestroy");
  library.Find(nccl.comm_abort, "ncclCommAbort");
  library.Find(nccl.group_start, "ncclGroupStart");
  library.Find(nccl.group_end, "ncclGroupEnd");
  library.Find(nccl.send, "ncclSend");
  library.Find(nccl.recv, "ncclRecv");
  library.Find(nccl.error_string, "ncclGetErrorString");
  return nccl;
}

class NcclCollective : public Collective {
 public:
  explicit NcclCollective(std::span<Stream* const> streams)
      : nccl_(LoadNccl()),
        streams_(streams.begin(), streams.end()),
        handles_(streams.size(), nullptr),
        comms_(streams.size(), nullptr) {
    std::vector<int> ordinals(streams_.size(), -1);
    for (size_t d = 0; d < streams_.size(); ++d) {
      CHECK(streams_[d]->device().kind() == DeviceKind::kCuda);
      events_.push_back(streams_[d]->device().CreateEvent());
      // The stream's GPU is the current one there.
      streams_[d]->Launch([ordinal = &ordinals[d]](CUstream_st*) -> LaunchResult {
        return {static_cast<int>(cudaGetDevice(ordinal)), "cudaGetDevice", ""};
      });
    }
    const ncclResult_t result =
        nccl_.comm_init_all(comms_.data(), static_cast<int>(comms_.size()), ordinals.data());
    if (result != ncclSuccess) {
      Fail(ErrorKind::kUnavailable,
           "NCCL does not connect these GPUs: {}; use peer copies (NCCL_DEBUG=INFO says more)",
           nccl_.error_string(result));
    }
    watcher_ = std::thread([this] { Watch(); });
  }

  ~NcclCollective() override {
    // While somebody watches: a lost device would keep the others waiting.
    for (Stream* const stream : streams_) static_cast<void>(stream->Synchronize());
    {
      MutexLock lock(mutex_);
      stop_ = true;
      changed_.NotifyAll();
    }
    watcher_.join();
    MutexLock lock(mutex_);
    if (aborted_) return;
    for (const ncclComm_t comm : comms_) nccl_.comm_destroy(comm);
  }

  const char* name() const override { return "NCCL"; }

  void Gather(std::span<const DeviceSpan> pieces, std::span<const DeviceSpan> into) override {
    const size_t devices = streams_.size();
    CHECK_EQ(pieces.size(), devices);
    CHECK_EQ(into.size(), devices);
    // An error of one is everybody's: else some would wait for what others do not send.
    for (size_t d = 0; d < devices; ++d) streams_[d]->Record(*events_[d]);
    for (size_t d = 0; d < devices; ++d) {
      for (size_t other = 0; other < devices; ++other) {
        if (other != d) streams_[d]->Wait(*events_[other]);
      }
    }
    for (size_t d = 0; d < devices; ++d) {
      handles_[d] = nullptr;
      streams_[d]->Launch([handle = &handles_[d]](CUstream_st* stream) -> LaunchResult {
        *handle = stream;
        return {};
      });
      if (handles_[d] == nullptr) return;
    }
    MutexLock lock(mutex_);
    if (aborted_) return;  // a device is lost, and its stream says so
    ncclResult_t result = nccl_.group_start();
    for (size_t to = 0; to < devices && result == ncclSuccess; ++to) {
      if (into[to].bytes() == 0) continue;
      uint64_t offset = 0;
      for (size_t from = 0; from < devices && result == ncclSuccess; ++from) {
        const DeviceSpan& piece = pieces[from];
        if (piece.bytes() == 0) continue;
        const DeviceSpan place = into[to].Subspan(offset, piece.bytes());
        offset += piece.bytes();
        if (from == to) {
          if (place.data() != piece.data()) streams_[to]->CopyBetween(place, piece);
          continue;
        }
        result = nccl_.send(piece.data(), piece.bytes(), ncclInt8, static_cast<int>(to),
                            comms_[from], handles_[from]);
        if (result != ncclSuccess) break;
        result = nccl_.recv(place.data(), place.bytes(), ncclInt8, static_cast<int>(from),
                            comms_[to], handles_[to]);
      }
    }
    const ncclResult_t ended = nccl_.group_end();
    if (result == ncclSuccess) result = ended;
    if (result == ncclSuccess) return;
    const char* const why = nccl_.error_string(result);
    for (Stream* const stream : streams_) {
      stream->Launch([why](CUstream_st*) -> LaunchResult {
        return {static_cast<int>(cudaErrorUnknown), "NCCL", why};
      });
    }
  }

 private:
  void Watch() {
    MutexLock lock(mutex_);
    while (!stop_ && !aborted_) {
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kWatchPeriod);
      for (Stream* const stream : streams_) {
        static_cast<void>(stream->Idle());  // finds out whether the device lives
        if (stream->device().lost()) aborted_ = true;
      }
    }
    if (!aborted_) return;
    for (const ncclComm_t comm : comms_) nccl_.comm_abort(comm);
  }

  const Nccl nccl_;
  const std::vector<Stream*> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<CUstream_st*> handles_;
  std::vector<ncclComm_t> comms_;
  Mutex mutex_;  // of NCCL's calls
  CondVar changed_;
  bool stop_ GUARDED_BY(mutex_) = false;
  bool aborted_ GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace

bool BuiltWithNccl() { return true; }

std::unique_ptr<Collective> MakeNcclCollective(std::span<Stream* const> streams) {
  return std::make_unique<NcclCollective>(streams);
}

}  // namespace moesaic
