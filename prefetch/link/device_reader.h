// DeviceReader: an AsyncReader whose files are pieces of host memory and whose reads land in a
// device's memory. A LinkMover with one drives a host -> device link as it drives a disk's.
//
// A read is one copy (a packet) on a stream of its own; a second stream waits for the event behind
// each copy and says that it is done, so that copies follow each other without a gap and nobody
// polls. Where a stream's calls are slow (Device::calls_are_slow) the thread that waits asks the
// events instead, while copies are on their way. A failed copy's result is -EIO, -ENODEV when the
// device is lost; the copies behind it go on.
//
// Thread contract: as AsyncReader's. Device and memory outlive it.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/device.h"
#include "core/io/async_reader.h"

namespace moesaic {

class DeviceReader : public AsyncReader {
 public:
  // files[i]: what ReadRequest::file i names. Destinations lie in `target`. depth: copies in
  // flight.
  DeviceReader(std::vector<std::span<const std::byte>> files, const DeviceSpan& target, int depth);
  ~DeviceReader() override;

  ReadBackend backend() const override { return ReadBackend::kThreads; }
  bool aligned_only() const override { return false; }
  int free_slots() const override { return static_cast<int>(free_.size()); }
  void Submit(const ReadRequest& request) override;
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override EXCLUDES(mutex_);
  void Wake() override EXCLUDES(mutex_);

 private:
  struct Copy {
    std::unique_ptr<Event> arrived;
    uint64_t tag = 0;
    uint32_t bytes = 0;
  };
  struct Done {
    int copy = 0;
    int64_t result = 0;
  };

  void Report(int copy, const Error* error) EXCLUDES(mutex_);
  // Takes those that have arrived, of a device that is asked.
  void Ask() REQUIRES(mutex_);

  const std::vector<std::span<const std::byte>> files_;
  const DeviceSpan target_;
  std::vector<Copy> copies_;  // [depth]
  std::vector<int> free_;     // a stack, of the driving thread
  const bool asks_;
  std::deque<int> asked_;    // on their way, oldest first; of the driving thread
  std::vector<Done> taken_;  // of the driving thread

  Mutex mutex_;
  CondVar changed_;
  std::vector<Done> done_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;

  // Go first: they wait for what is queued, which ends in Report.
  std::unique_ptr<Stream> copying_;
  std::unique_ptr<Stream> reporting_;  // null where the device is asked
};

}  // namespace moesaic
