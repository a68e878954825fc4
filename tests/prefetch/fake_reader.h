// ManualReader: an AsyncReader over files in memory that completes reads when the test says so, in
// the order the test says, with the result the test says.
//
// Thread contract: as AsyncReader's; the test's methods may be called from any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/mutex.h"
#include "core/io/async_reader.h"

namespace moesaic {

// What a ManualReader reads, how it is driven, and what it was asked. Outlives the reader.
class ManualDisk {
 public:
  explicit ManualDisk(std::vector<std::vector<std::byte>> files) : files_(std::move(files)) {}

  // Automatic: each read completes as soon as it is submitted. Otherwise reads wait for Complete.
  void SetAutomatic(bool automatic) {
    MutexLock lock(mutex_);
    automatic_ = automatic;
    if (automatic) CompleteLocked(pending_.size());
    changed_.NotifyAll();
  }
  // The result of a read, instead of reading: asked for each read when it completes; 0 means that
  // the read goes its normal way.
  void SetFault(std::function<int64_t(const ReadRequest&)> fault) {
    MutexLock lock(mutex_);
    fault_ = std::move(fault);
  }
  void Truncate(size_t file, size_t bytes) {
    MutexLock lock(mutex_);
    files_[file].resize(bytes);
  }
  // Blocks until `reads` reads are waiting; returns them, oldest first.
  std::vector<ReadRequest> WaitForPending(size_t reads) {
    MutexLock lock(mutex_);
    while (pending_.size() < reads) changed_.Wait(mutex_);
    return {pending_.begin(), pending_.end()};
  }
  size_t pending() {
    MutexLock lock(mutex_);
    return pending_.size();
  }
  void Complete(size_t reads = 1) {
    MutexLock lock(mutex_);
    CHECK_LE(reads, pending_.size());
    CompleteLocked(reads);
    changed_.NotifyAll();
  }
  uint64_t submitted() {
    MutexLock lock(mutex_);
    return submitted_;
  }
  int max_in_flight() {
    MutexLock lock(mutex_);
    return max_in_flight_;
  }

 private:
  friend class ManualReader;

  void CompleteLocked(size_t reads) REQUIRES(mutex_) {
    for (size_t i = 0; i < reads; ++i) {
      const ReadRequest request = pending_.front();
      pending_.pop_front();
      done_.push_back({request.tag, Perform(request)});
    }
  }
  int64_t Perform(const ReadRequest& request) REQUIRES(mutex_) {
    if (fault_) {
      const int64_t result = fault_(request);
      if (result != 0) return result;
    }
    const std::vector<std::byte>& file = files_[static_cast<size_t>(request.file)];
    if (request.offset >= file.size()) return 0;
    const size_t bytes = std::min<size_t>(request.bytes, file.size() - request.offset);
    std::memcpy(request.destination, file.data() + request.offset, bytes);
    return static_cast<int64_t>(bytes);
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::vector<std::byte>> files_ GUARDED_BY(mutex_);
  std::function<int64_t(const ReadRequest&)> fault_ GUARDED_BY(mutex_);
  bool automatic_ GUARDED_BY(mutex_) = true;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::deque<ReadRequest> pending_ GUARDED_BY(mutex_);
  std::vector<ReadCompletion> done_ GUARDED_BY(mutex_);
  uint64_t submitted_ GUARDED_BY(mutex_) = 0;
  int max_in_flight_ GUARDED_BY(mutex_) = 0;
};

class ManualReader : public AsyncReader {
 public:
  ManualReader(ManualDisk& disk, int depth, bool aligned)
      : disk_(disk), depth_(depth), aligned_(aligned) {}
  // All reads must have completed: the loader may not leave any behind.
  ~ManualReader() override { CHECK_EQ(in_flight_, 0); }

  ReadBackend backend() const override { return ReadBackend::kThreads; }
  bool aligned_only() const override { return aligned_; }
  int free_slots() const override { return depth_ - in_flight_; }
  void Submit(const ReadRequest& request) override {
    CHECK_GT(free_slots(), 0);
    if (aligned_) {
      CHECK_EQ(request.offset % 4096, 0u);
      CHECK_EQ(request.bytes % 4096, 0u);
      CHECK_EQ(reinterpret_cast<uintptr_t>(request.destination) % 4096, 0u);
    }
    ++in_flight_;
    MutexLock lock(disk_.mutex_);
    ++disk_.submitted_;
    disk_.max_in_flight_ = std::max(disk_.max_in_flight_, in_flight_);
    disk_.pending_.push_back(request);
    if (disk_.automatic_) disk_.CompleteLocked(1);
    disk_.changed_.NotifyAll();
  }
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    MutexLock lock(disk_.mutex_);
    CHECK_LE(timeout_us, 0);  // no clock here: poll or wait
    while (timeout_us < 0 && disk_.done_.empty() && !disk_.woken_) {
      disk_.changed_.Wait(disk_.mutex_);
    }
    disk_.woken_ = false;
    in_flight_ -= static_cast<int>(disk_.done_.size());
    out.insert(out.end(), disk_.done_.begin(), disk_.done_.end());
    disk_.done_.clear();
  }
  void Wake() override {
    MutexLock lock(disk_.mutex_);
    disk_.woken_ = true;
    disk_.changed_.NotifyAll();
  }

 private:
  ManualDisk& disk_;
  const int depth_;
  const bool aligned_;
  int in_flight_ = 0;  // the driving thread's
};

}  // namespace moesaic
