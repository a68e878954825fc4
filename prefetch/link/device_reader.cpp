#include "prefetch/link/device_reader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/check.h"
#include "core/base/short_sleep.h"

namespace moesaic {
namespace {

// Between two looks at what is on its way: a packet takes longer, and several are queued.
constexpr std::chrono::microseconds kLookPeriod{10};

int64_t ResultOf(const Error& error) {
  return error.kind() == ErrorKind::kUnavailable ? -ENODEV : -EIO;
}

}  // namespace

DeviceReader::DeviceReader(std::vector<std::span<const std::byte>> files, const DeviceSpan& target,
                           int depth)
    : files_(std::move(files)),
      target_(target),
      copies_(static_cast<size_t>(depth)),
      asks_(target.device()->calls_are_slow()),
      copying_(target.device()->CreateStream()),
      reporting_(asks_ ? nullptr : target.device()->CreateStream()) {
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
  if (asks_) {
    asked_.push_back(index);
    return;
  }
  reporting_->Wait(*copy.arrived);
  reporting_->Call([this, index](const Error* error) { Report(index, error); });
  reporting_->ClearError();
}

void DeviceReader::Report(int index, const Error* error) {
  int64_t result = copies_[static_cast<size_t>(index)].bytes;
  if (error != nullptr) result = ResultOf(*error);
  MutexLock lock(mutex_);
  done_.push_back({index, result});
  changed_.NotifyAll();
}

// Copies of a stream arrive in order.
void DeviceReader::Ask() {
  while (!asked_.empty()) {
    const Copy& copy = copies_[static_cast<size_t>(asked_.front())];
    const Event::State state = copy.arrived->Query();
    if (state == Event::State::kPending) return;
    int64_t result = copy.bytes;
    if (state == Event::State::kFailed) {
      const std::optional<Error> error = copy.arrived->Synchronize();
      result = error ? ResultOf(*error) : -EIO;
    }
    done_.push_back({asked_.front(), result});
    asked_.pop_front();
  }
}

void DeviceReader::Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  {
    MutexLock lock(mutex_);
    for (Ask(); done_.empty() && !woken_; Ask()) {
      if (!asked_.empty()) {
        WakeOnTime();
        const auto look = std::chrono::steady_clock::now() + kLookPeriod;
        if (timeout_us >= 0 && look > deadline) break;
        changed_.WaitUntil(mutex_, look);
      } else if (timeout_us < 0) {
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
