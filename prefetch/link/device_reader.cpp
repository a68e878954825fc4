#include "prefetch/link/device_reader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/check.h"

namespace moesaic {

DeviceReader::DeviceReader(std::vector<std::span<const std::byte>> files, const DeviceSpan& target,
                           int depth)
    : files_(std::move(files)),
      target_(target),
      copies_(static_cast<size_t>(depth)),
      copying_(target.device()->CreateStream()),
      reporting_(target.device()->CreateStream()) {
  CHECK_GT(depth, 0);
  for (Copy& copy : copies_) copy.arrived = target.device()->CreateEvent();
  for (int i = depth - 1; i >= 0; --i) free_.push_back(i);
  taken_.reserve(copies_.size());
  MutexLock lock(mutex_);
  done_.reserve(copies_.size());
}

DeviceReader::~DeviceReader() = default;

void DeviceReader::Submit(const ReadRequest& request) {
  CHECK(!free_.empty());
  const std::span<const std::byte> file = files_.at(static_cast<size_t>(request.file));
  CHECK_LE(request.offset, file.size());
  CHECK(request.destination >= target_.data());
  // As a file, this memory may end before the request does.
  const auto bytes =
      static_cast<uint32_t>(std::min<uint64_t>(request.bytes, file.size() - request.offset));
  const int index = free_.back();
  free_.pop_back();
  Copy& copy = copies_[static_cast<size_t>(index)];
  copy.tag = request.tag;
  copy.bytes = bytes;
  copying_->CopyToDevice(
      target_.Subspan(static_cast<uint64_t>(request.destination - target_.data()), bytes),
      file.subspan(request.offset, bytes));
  copying_->Record(*copy.arrived);
  copying_->ClearError();  // packets do not depend on each other
  reporting_->Wait(*copy.arrived);
  reporting_->Call([this, index](const Error* error) { Report(index, error); });
  reporting_->ClearError();
}

void DeviceReader::Report(int index, const Error* error) {
  int64_t result = copies_[static_cast<size_t>(index)].bytes;
  if (error != nullptr) result = error->kind() == ErrorKind::kUnavailable ? -ENODEV : -EIO;
  MutexLock lock(mutex_);
  done_.push_back({index, result});
  changed_.NotifyAll();
}

void DeviceReader::Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  {
    MutexLock lock(mutex_);
    while (done_.empty() && !woken_) {
      if (timeout_us < 0) {
        changed_.Wait(mutex_);
      } else if (!changed_.WaitUntil(mutex_, deadline)) {
        break;
      }
    }
    woken_ = false;
    taken_.swap(done_);
  }
  for (const Done& done : taken_) {
    out.push_back({copies_[static_cast<size_t>(done.copy)].tag, done.result});
    free_.push_back(done.copy);
  }
  taken_.clear();
}

void DeviceReader::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

}  // namespace moesaic
